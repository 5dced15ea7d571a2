//! Which data set is read, and how: the keys of `data` as the options of the data crate.
//!
//! It does not open files.

use super::choice::{DataKind, LossKind};
use super::parts::{choice, path};
use super::resolve::Resolved;
use super::value::{Value, counts};
use dtrain_data::{
    Augment, Broken, ClipForm, ClipsOptions, Colours, Column, ColumnRule, CsvOptions, CsvTarget,
    DigitsOptions, FileGroup, HarInputs, HeldOut, IdxOptions, ImagesOptions, LabelTable, Missing, Normalise,
    NpyOptions, NpyTarget, PictureForm, PictureTablesOptions, RecordingGroup, ShardsOptions, Source,
    TextOptions, TokensOptions, Unseen, ValSplit, WindowForm, WindowsOptions, Written,
};
use std::convert::Infallible;
use std::path::PathBuf;

fn needed_path(r: &Resolved, name: &str) -> PathBuf {
    path(r, name).unwrap_or_else(|| panic!("{name} is required by the table"))
}

/// Which data set is read, and how.
pub(super) fn data(r: &Resolved) -> Option<Source> {
    let pair = |x, y| (needed_path(r, x), needed_path(r, y));
    let optional_pair = |x, y| path(r, x).zip(path(r, y));
    Some(match choice(r, "data.kind", DataKind::from_name) {
        DataKind::Own | DataKind::Torch => return None,
        DataKind::Digits => Source::Digits(DigitsOptions { augment: augment(r), normalise: normalise(r) }),
        DataKind::Idx => {
            let (images, labels) = pair("data.images", "data.labels");
            Source::Idx(IdxOptions {
                images,
                labels,
                val: optional_pair("data.val_images", "data.val_labels"),
                val_split: val_split(r),
                classes: r.int("data.classes"),
                augment: augment(r),
                normalise: normalise(r),
            })
        }
        DataKind::Images => Source::Images(images(r)),
        DataKind::Tar => Source::Tar(shards(r)),
        DataKind::ParquetImages => Source::ParquetImages(picture_tables(r)),
        DataKind::Clips => Source::Clips(clips(r)),
        DataKind::Csv => Source::Csv(csv(r)),
        DataKind::Parquet => Source::Csv(CsvOptions { written: Written::Parquet, ..csv(r) }),
        DataKind::Windows => Source::Windows(windows(r)),
        DataKind::Npy => {
            let (inputs, targets) = pair("data.inputs", "data.targets");
            Source::Npy(NpyOptions {
                inputs,
                targets,
                val: optional_pair("data.val_inputs", "data.val_targets"),
                val_split: val_split(r),
                target: match choice(r, "loss.kind", LossKind::from_name) {
                    LossKind::Mse | LossKind::Torch => NpyTarget::Value,
                    LossKind::CrossEntropy => NpyTarget::Class { classes: r.int("data.classes") },
                },
                augment: augment(r),
                normalise: normalise(r),
                normalise_targets: r.flag("data.normalize_targets"),
            })
        }
        DataKind::Text => Source::Text(TextOptions {
            path: needed_path(r, "data.path"),
            context: r.count("data.context"),
            val_split: fraction(r),
        }),
        DataKind::Tokens => Source::Tokens(TokensOptions {
            path: needed_path(r, "data.path"),
            val_path: path(r, "data.val_path"),
            context: r.count("data.context"),
            vocabulary: r.int("data.vocabulary"),
            val_split: fraction(r),
            packing: r.word("data.packing") == "on",
        }),
    })
}

/// Each frame is as an image is.
fn clips(r: &Resolved) -> ClipsOptions {
    let ImagesOptions { path, val_path, val_split, group, form, broken, cache, augment, normalise, .. } =
        images(r);
    let form =
        ClipForm { frames: r.count("data.frames"), stride: r.count("data.frame_stride"), picture: form };
    ClipsOptions { path, val_path, val_split, group, form, broken, cache, augment, normalise }
}

/// A picture is as one of a folder.
fn shards(r: &Resolved) -> ShardsOptions {
    let ImagesOptions { path, val_path, val_split, form, broken, cache, augment, normalise, .. } = images(r);
    let classes = r.int("data.classes");
    ShardsOptions { path, val_path, val_split, classes, form, broken, cache, augment, normalise }
}

fn picture_tables(r: &Resolved) -> PictureTablesOptions {
    let label = r.text("data.label").unwrap_or("label").to_owned();
    PictureTablesOptions { shards: shards(r), label }
}

fn images(r: &Resolved) -> ImagesOptions {
    let [height, width] = match r.get("data.size") {
        Some(Value::List(sides)) => match counts(sides)[..] {
            [height, width] => [height as u32, width as u32],
            ref other => [other.first().map_or(1, |side| *side as u32); 2],
        },
        _ => [r.count("data.size"); 2],
    };
    ImagesOptions {
        path: needed_path(r, "data.path"),
        val_path: path(r, "data.val_path"),
        val_split: val_split(r),
        labels: label_table(r),
        group: file_group(r),
        form: PictureForm {
            height,
            width,
            colours: if r.word("data.colors") == "gray" { Colours::Gray } else { Colours::Rgb },
        },
        broken: if r.word("data.broken") == "skip" { Broken::Skip } else { Broken::Refuse },
        cache: r.size("data.cache").unwrap_or(0),
        augment: augment(r),
        normalise: normalise(r),
    }
}

/// What says of which class images are, where folders do not.
fn label_table(r: &Resolved) -> Option<LabelTable> {
    let path = r.get("data.labels").and_then(|_| path(r, "data.labels"))?;
    let by_column = match r.get("data.group") {
        Some(Value::Text(name)) => FileGroup::pattern(name).is_none().then(|| Column::Name(name.clone())),
        _ => None,
    };
    Some(LabelTable {
        path,
        val: super::parts::path(r, "data.val_labels"),
        file: column(r, "data.file_column").unwrap_or_default(),
        label: column(r, "data.label").unwrap_or_default(),
        group: by_column,
    })
}

fn windows(r: &Resolved) -> WindowsOptions {
    let length = r.count("data.length");
    let by_column = column(r, "data.group");
    let group = match r.get("data.group") {
        Some(Value::Word("none")) => RecordingGroup::None,
        Some(Value::Word("folder")) => RecordingGroup::Folder,
        Some(Value::Word(_)) | None => RecordingGroup::File,
        Some(_) => RecordingGroup::Column,
    };
    WindowsOptions {
        table: CsvOptions { group: by_column, time: column(r, "data.time"), ..csv(r) },
        group,
        form: WindowForm {
            length,
            stride: r.int("data.stride").map_or(length, |stride: u32| stride as usize),
            gap: r.number("data.gap"),
        },
        har: if r.word("data.har") == "features" { HarInputs::Features } else { HarInputs::Signals },
    }
}

/// A word, where the key belongs to this kind of data.
fn word_if_any<'a>(r: &'a Resolved, key: &str) -> Option<&'a str> {
    r.get(key).map(|_| r.word(key))
}

fn csv(r: &Resolved) -> CsvOptions {
    CsvOptions {
        path: needed_path(r, "data.path"),
        written: Written::Text,
        val_path: path(r, "data.val_path"),
        val_split: val_split(r),
        label: column(r, "data.label").unwrap_or_default(),
        target: match choice(r, "loss.kind", LossKind::from_name) {
            LossKind::Mse | LossKind::Torch => CsvTarget::Value,
            LossKind::CrossEntropy => CsvTarget::Class { classes: r.int("data.classes") },
        },
        group: column(r, "data.group"),
        time: None,
        header: match r.get("data.header") {
            Some(Value::Bool(header)) => Some(*header),
            _ => None,
        },
        skip: r.get("data.skip").map_or(0, |_| r.count("data.skip")),
        delimiter: match r.get("data.delimiter") {
            Some(Value::Text(text)) => text.chars().next(),
            _ => None,
        },
        columns: columns(r),
        missing: if r.word("data.missing") == "fill" { Missing::Fill } else { Missing::Refuse },
        unseen: if word_if_any(r, "data.unseen") == Some("refuse") { Unseen::Refuse } else { Unseen::Ignore },
        normalise_targets: r.flag("data.normalize_targets"),
        shape: match r.get("data.shape") {
            Some(Value::List(sides)) => Some(counts(sides)),
            _ => None,
        },
        augment: if r.get("data.augment").is_some() { augment(r) } else { Augment::default() },
        normalise: normalise(r),
    }
}

/// A column by its number or its name; none for a word of the table of keys.
fn column(r: &Resolved, key: &str) -> Option<Column> {
    match r.get(key) {
        Some(Value::Int(index)) => Some(Column::Index(usize::try_from(*index).expect("the table bounds it"))),
        Some(Value::Text(name)) => Some(Column::Name(name.clone())),
        _ => None,
    }
}

/// What says of which group a file is.
fn file_group(r: &Resolved) -> Option<FileGroup> {
    match r.get("data.group") {
        Some(Value::Word("folder")) => Some(FileGroup::Folder),
        // What is no pattern is a column of the table of labels.
        Some(Value::Text(pattern)) => FileGroup::pattern(pattern),
        _ => None,
    }
}

/// A list of names, some of which may be numbers.
pub(super) fn named(values: &[Value]) -> Vec<String> {
    let name = |value: &Value| match value {
        Value::Int(number) => number.to_string(),
        Value::Text(name) => name.clone(),
        other => panic!("neither a name nor a number: {other:?}"),
    };
    values.iter().map(name).collect()
}

/// What is said of single columns.
fn columns(r: &Resolved) -> Vec<ColumnRule> {
    let Some(Value::List(rules)) = r.get("data.columns") else { return Vec::new() };
    named(rules).iter().map(|rule| rule.parse().unwrap_or_else(|never: Infallible| match never {})).collect()
}

fn val_split(r: &Resolved) -> ValSplit {
    let held_out = match r.get("data.held_out") {
        Some(Value::List(groups)) => HeldOut::Groups(named(groups)),
        Some(Value::Word("last")) => HeldOut::Last,
        _ => HeldOut::Scattered,
    };
    ValSplit { fraction: fraction(r), held_out }
}

fn fraction(r: &Resolved) -> f64 {
    r.number("data.val_split").expect("a split is a number")
}

fn normalise(r: &Resolved) -> Normalise {
    match r.get("data.normalize") {
        Some(Value::Number(factor)) => Normalise::Scale(*factor as f32),
        Some(Value::Word("none")) => Normalise::Keep,
        _ => Normalise::Standardise,
    }
}

fn augment(r: &Resolved) -> Augment {
    let text = augment_text(r.list("data.augment"));
    text.parse().unwrap_or_else(|error| panic!("checked before values got types: {error}"))
}

/// A list of augmentations in the notation of the data crate.
pub(super) fn augment_text(values: &[Value]) -> String {
    let parts: Vec<&str> = values
        .iter()
        .map(|value| match value {
            Value::Text(text) => text.as_str(),
            other => panic!("no text: {other:?}"),
        })
        .collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join("+") }
}
