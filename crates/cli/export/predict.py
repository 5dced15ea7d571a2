"""From a table (.csv), an array (.npy) or images to names and numbers, as `dtrain predict` does it.

    python predict.py new.csv > predicted.csv
"""

import csv
import json
import pathlib
import sys

import torch

import model as trained

IMAGES = (".jpg", ".jpeg", ".png", ".webp")
HERE = pathlib.Path(__file__).parent
MISSING = {"", "?", "-", "na", "n/a", "#n/a", "nan", "null"}
NO_NUMBER = MISSING | {"none"}


def features(row, columns, line):
    """The features of one row of a table, given as a dict by column."""
    values = []
    for key, column in columns:
        role = column["role"]
        if role == "target" or "left_out" in role:
            continue
        field = row[key].strip()
        if "number" in role:
            fill = role["number"]["fill"]
            missing = field.lower() in NO_NUMBER
            if missing and fill is None:
                raise SystemExit(f"line {line}: {key} is missing")
            values.append(fill if missing else float(field))
        else:
            category = role["category"]
            missing = field.lower() in MISSING and field not in category["words"]
            if missing and category["missing"] is None:
                raise SystemExit(f"line {line}: {key} is missing")
            if not missing and field not in category["words"] and category["unseen"] == "refuse":
                raise SystemExit(f"line {line}: {field!r} is in no row of the training table")
            values += [1.0 if field == word else 0.0 for word in category["words"]]
    return values


def read_table(path, preparation):
    columns = preparation["columns"]
    with open(path, newline="", encoding="utf-8-sig") as file:
        sample = file.readline()
        file.seek(0)
        delimiter = next((one for one in ",;\t" if one in sample), " ")
        rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
        if not columns:
            return [[float(field) for field in row] for row in rows if row]
        if preparation["header"]:
            names = [name.strip() for name in next(rows)]
            keyed = [(column["name"], column) for column in columns]
            used = [name for name, column in keyed if column["role"] != "target" and "left_out" not in column["role"]]
            lacking = [name for name in used if name not in names]
            if lacking:
                raise SystemExit(f"{path} has no column {', '.join(lacking)}")
            return [features(dict(zip(names, row)), keyed, line) for line, row in enumerate(rows, 2) if row]
        whole = len(columns)
        without = [at for at, column in enumerate(columns) if column["role"] != "target"]
        keyed = list(enumerate(columns))
        place = lambda row: dict(enumerate(row)) if len(row) == whole else dict(zip(without, row))
        return [features(place(row), keyed, line) for line, row in enumerate(rows, 1) if row]


def read_images(path, picture):
    """An image, or all of a folder: the shorter side scaled, the middle cut."""
    import numpy
    from PIL import Image, ImageOps

    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    mode = "L" if picture["colours"] == "gray" else "RGB"
    pixels = []
    for file in files:
        if file.suffix.lower() in IMAGES:
            image = ImageOps.exif_transpose(Image.open(file)).convert(mode)
            image = ImageOps.fit(image, (picture["width"], picture["height"]), Image.Resampling.BILINEAR)
            array = numpy.asarray(image, dtype="float32")
            pixels.append(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    if not pixels:
        sys.exit(f"{path} has no images")
    return torch.from_numpy(numpy.stack(pixels))


def main(path):
    preparation = json.loads((HERE / "preparation.json").read_text())
    picture = preparation.get("picture")
    if picture and (pathlib.Path(path).is_dir() or pathlib.Path(path).suffix.lower() in IMAGES):
        inputs = read_images(pathlib.Path(path), picture)
    elif path.endswith(".npy"):
        import numpy

        inputs = torch.from_numpy(numpy.load(path).astype("float32"))
    else:
        inputs = torch.tensor(read_table(path, preparation), dtype=torch.float32)
    shape = preparation["input"]["values"]["shape"]
    model = trained.load(str(HERE / "model.safetensors"))
    with torch.no_grad():
        outputs = torch.cat([model(batch) for batch in inputs.reshape(-1, *shape).split(1024)])
    out = csv.writer(sys.stdout, lineterminator="\n")
    if "class" in preparation["target"]:
        shares = outputs.double().softmax(-1)
        names = preparation["class_names"] or [str(number) for number in range(shares.shape[1])]
        out.writerow(["prediction"] + [f"p({name})" for name in names])
        out.writerows([names[row.argmax()]] + row.tolist() for row in shares)
    else:
        width = outputs.shape[1]
        out.writerow(["prediction"] if width == 1 else [f"prediction_{at}" for at in range(width)])
        out.writerows(outputs.tolist())


if __name__ == "__main__":
    main(sys.argv[1])
