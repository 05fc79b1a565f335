"""Who owns a vertex: routing a batch to the sides that hold its rows."""
