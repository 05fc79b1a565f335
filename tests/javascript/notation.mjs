// JSON for what JSON lacks, as docs/protocol-vectors.json says: {"bin": HEX}, {"map": [[key, value], ...]}, {"int": TEXT}.

import { column, flags, values } from "./client.mjs";

/** The value that such JSON shows. */
export function fromJson(shown) {
  if (Array.isArray(shown)) return shown.map(fromJson);
  if (shown === null || typeof shown !== "object") return shown;
  const keys = Object.keys(shown).join();
  if (keys === "bin") return Buffer.from(shown.bin, "hex");
  if (keys === "int") return BigInt(shown.int);
  if (keys === "map") return new Map(shown.map.map(fromJson));
  return Object.fromEntries(Object.entries(shown).map(([key, item]) => [key, fromJson(item)]));
}

/** Such JSON for a value. */
export function toJson(value) {
  if (Array.isArray(value)) return value.map(toJson);
  if (typeof value === "bigint") {
    return Number.isSafeInteger(Number(value)) ? Number(value) : { int: String(value) };
  }
  if (value === null || typeof value !== "object") return value;
  if (value instanceof Uint8Array) return { bin: Buffer.from(value).toString("hex") };
  if (value instanceof Map) return { map: [...value].map(toJson) };
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, toJson(item)]));
}

/** What a result says: its columns as arrays, null where a bitmap says so. */
export function meaning(value) {
  if (Array.isArray(value)) return value.map(meaning);
  if (value === null || typeof value !== "object" || value instanceof Map || value instanceof Uint8Array) return value;
  if (Object.keys(value).sort().join() === "data,dtype" && typeof value.dtype === "string") {
    return value.dtype === "|b1" ? Array.from(column(value), Boolean) : Array.from(column(value));
  }
  const read = Object.fromEntries(Object.entries(value).map(([key, item]) => [key, meaning(item)]));
  for (const name of ["values", "out", "in"]) {
    if (value[name] && "null" in value) read[name] = values(value[name], value.null);
  }
  if ("saturated" in value) read.saturated = flags(value.saturated, read.values.length);
  delete read.null;
  return read;
}
