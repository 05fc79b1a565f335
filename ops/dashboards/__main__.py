"""Write every dashboard's JSON beside its source."""

from . import FOLDER, render

for name, text in render().items():
    (FOLDER / name).write_text(text, "utf-8")
    print(f"{FOLDER / name}")
