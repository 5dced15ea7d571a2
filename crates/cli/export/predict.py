"""From a table (.csv), recordings, an array (.npy), images or clips to names and numbers, as `dtrain predict` does it.

    python predict.py new.csv > predicted.csv
"""

import csv
import datetime
import json
import pathlib
import re
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
    """An image, or all of a folder."""
    import numpy

    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    pixels = [decode(file, picture) for file in files if file.suffix.lower() in IMAGES]
    if not pixels:
        sys.exit(f"{path} has no images")
    return torch.from_numpy(numpy.stack(pixels))


def natural(path):
    return [(len(part.lstrip("0")), part.lstrip("0")) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def read_clips(path, form):
    """A folder of frames or an array of them, or all in a folder: the frames in the middle, each as an image."""
    import numpy

    is_frame = lambda file: file.suffix.lower() in IMAGES
    is_clip = lambda folder: folder.is_dir() and any(is_frame(file) for file in folder.iterdir())
    inside = sorted(path.rglob("*")) if path.is_dir() else []
    clips = [one for one in [path, *inside] if is_clip(one) or one.suffix == ".npy"]
    if not clips:
        sys.exit(f"{path} has no clips")
    count, stride = form["frames"], form["stride"]
    needed, samples = (count - 1) * stride + 1, []
    for clip in clips:
        frames = sorted(filter(is_frame, clip.iterdir()), key=natural) if clip.is_dir() else numpy.load(clip)
        if len(frames) < needed:
            sys.exit(f"{clip} has {len(frames)} frames, and {needed} are needed")
        first = (len(frames) - needed) // 2
        taken = [decode(frames[first + at * stride], form["picture"]) for at in range(count)]
        samples.append(numpy.stack(taken, axis=1))
    return torch.from_numpy(numpy.stack(samples))


def moment(text):
    """A time as seconds."""
    try:
        return float(text)
    except ValueError:
        time = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00").replace("/", "-"))
        return time.replace(tzinfo=time.tzinfo or datetime.timezone.utc).timestamp()


def read_windows(path, preparation):
    """A recording in windows, none over a gap or from one group into another."""
    form, columns = preparation["window"], [(column["name"], column) for column in preparation["columns"]]
    if not preparation["header"]:
        sys.exit(f"{path}: recordings without a header go as an array [n, channels, length] in a .npy file")
    named = lambda why: next((name for name, column in columns if column["role"] == {"left_out": why}), None)
    time_name, group_name = named("time"), named("group")
    rows, windows, before = [], [], None

    def cut():
        firsts = range(0, len(rows) - form["length"] + 1, form["stride"])
        windows.extend(rows[first : first + form["length"]] for first in firsts)
        rows.clear()

    with open(path, newline="", encoding="utf-8-sig") as file:
        sample = file.readline()
        file.seek(0)
        delimiter = next((one for one in ",;\t" if one in sample), " ")
        for line, row in enumerate(csv.DictReader(file, delimiter=delimiter, skipinitialspace=True), 2):
            time = moment(row[time_name]) if time_name and form["gap"] is not None else None
            now = (time, row.get(group_name))
            if rows and (now[1] != before[1] or (time is not None and time - before[0] > form["gap"])):
                cut()
            rows.append(features(row, columns, line))
            before = now
    cut()
    if not windows:
        sys.exit(f"{path} has no window of {form['length']} rows")
    return torch.tensor(windows).transpose(1, 2)


def decode(source, picture):
    """An image, as a file or an array, as channels of rows: the shorter side scaled, the middle cut."""
    import numpy
    from PIL import Image, ImageOps

    mode = "L" if picture["colours"] == "gray" else "RGB"
    if isinstance(source, numpy.ndarray):
        image = Image.fromarray(source.squeeze(-1) if source.shape[2:] == (1,) else source)
    else:
        image = ImageOps.exif_transpose(Image.open(source))
    image = image.convert(mode)
    image = ImageOps.fit(image, (picture["width"], picture["height"]), Image.Resampling.BILINEAR)
    array = numpy.asarray(image, dtype="float32")
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def numpy_shape(path):
    import numpy

    return numpy.load(path, mmap_mode="r").shape


def main(path):
    preparation = json.loads((HERE / "preparation.json").read_text())
    picture = preparation.get("picture")
    if picture and (pathlib.Path(path).is_dir() or pathlib.Path(path).suffix.lower() in IMAGES):
        inputs = read_images(pathlib.Path(path), picture)
    elif preparation.get("clip") and not (path.endswith(".npy") and len(numpy_shape(path)) > 4):
        inputs = read_clips(pathlib.Path(path), preparation["clip"])
    elif preparation.get("window") and not path.endswith(".npy"):
        inputs = read_windows(path, preparation)
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
