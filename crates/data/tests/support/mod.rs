//! Writes the files that the tests read, and reads whole data sets back.
#![allow(dead_code)]

use dtrain_data::{
    Augment, Batch, Broken, Colours, DataError, Dataset, Elements, EvaluationPlan, ImagesOptions, Normalise,
    Opened, PictureForm, ShardsOptions, Source, ValSplit, open,
};
use dtrain_types::MicroBatch;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes `bytes` into `folder/name`.
pub fn file(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// An IDX file of unsigned bytes.
pub fn idx(dims: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// A NumPy array, format version 1.
pub fn npy(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    bytes
}

pub fn little<const N: usize, T: Copy>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| bytes(*value)).collect()
}

/// Every sample of a data set without augmentation, in one batch.
pub fn all(dataset: &dyn Dataset) -> Batch {
    let plan = EvaluationPlan::new(dataset.len(), dataset.len() as u32);
    let mut batch = plan.batch(dataset);
    plan.read(dataset, MicroBatch(0), &mut batch).unwrap();
    batch
}

/// Inputs and classes of a whole data set.
pub fn values_and_classes(dataset: &dyn Dataset) -> (Vec<f32>, Vec<u32>) {
    let batch = all(dataset);
    (batch.inputs().f32().to_vec(), batch.targets().u32().to_vec())
}

/// The error of a source that must not open, as text; its hint must say something.
pub fn refused(source: Source) -> String {
    let error: DataError = open(&source).map(|opened: Opened| format!("{opened:?}")).unwrap_err();
    assert!(error.hint().len() > 10, "{error}");
    error.to_string()
}

/// The bits of one side of a batch.
pub fn bits(elements: Elements<'_>) -> Vec<u32> {
    match elements {
        Elements::F32(values) => values.iter().map(|value| value.to_bits()).collect(),
        Elements::U32(values) => values.to_vec(),
    }
}

/// What the pictures of [`shards`] become.
pub const FORM: PictureForm = PictureForm { height: 4, width: 4, colours: Colours::Rgb };

/// Pictures that lie together in files, none of them held out, and as they are.
pub fn shards(path: &Path) -> ShardsOptions {
    ShardsOptions {
        path: path.to_owned(),
        val_path: None,
        val_split: ValSplit { fraction: 0.0, ..ValSplit::default() },
        classes: None,
        form: FORM,
        broken: Broken::Refuse,
        cache: 1 << 20,
        augment: Augment::default(),
        normalise: Normalise::Keep,
    }
}

/// The same of pictures in folders.
pub fn folders(path: &Path) -> ImagesOptions {
    let ShardsOptions { path, val_path, val_split, form, broken, cache, augment, normalise, .. } =
        shards(path);
    let (labels, group) = (None, None);
    ImagesOptions { path, val_path, labels, val_split, group, form, broken, cache, augment, normalise }
}
