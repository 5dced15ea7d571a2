//! IDX files, the format of MNIST and its relatives: a magic number, the sizes of the dimensions, then bytes.
//!
//! Plain files are mapped, gzip files are unpacked in memory. It does not know what the classes are called.
//!
//! *Source*: Y. LeCun, C. Cortes and C. Burges, "The MNIST database", file formats.

use crate::bytes::Bytes;
use crate::rows::{Recipe, Store, Table, Targets, assemble, class_of};
use crate::{Augment, DataError, Normalise, Opened, ValSplit};
use std::path::{Path, PathBuf};

const NEEDS: &str =
    "kind idx needs `images` and `labels` (and `val_images` and `val_labels`), plain, .gz or .zst";
/// The type code of unsigned bytes, the only one in use.
const UNSIGNED_BYTE: u8 = 0x08;

/// Which IDX files, and how they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct IdxOptions {
    /// Training images.
    pub images: PathBuf,
    /// Training labels.
    pub labels: PathBuf,
    /// Validation images and labels; without them `val_split` says what is held out.
    pub val: Option<(PathBuf, PathBuf)>,
    /// What is held out of the training images if there are no validation files.
    pub val_split: ValSplit,
    /// The number of classes; by default one more than the highest label.
    pub classes: Option<u32>,
    /// Variations of the training images.
    pub augment: Augment,
    /// Scaling of the pixels (0 to 255).
    pub normalise: Normalise,
}

impl IdxOptions {
    /// Training files without anything else.
    #[must_use]
    pub fn new(images: impl Into<PathBuf>, labels: impl Into<PathBuf>) -> Self {
        Self {
            images: images.into(),
            labels: labels.into(),
            val: None,
            val_split: ValSplit::default(),
            classes: None,
            augment: Augment::default(),
            normalise: Normalise::default(),
        }
    }
}

pub(crate) fn open(options: &IdxOptions) -> Result<Opened, DataError> {
    let train = table(&options.images, &options.labels, options.classes)?;
    let val = match &options.val {
        Some((images, labels)) => Some(table(images, labels, options.classes)?),
        None => None,
    };
    let recipe = Recipe {
        classes: options.classes,
        split: options.val_split.clone(),
        normalise: options.normalise,
        augment: options.augment,
        ..Recipe::default()
    };
    assemble(train, val, recipe)
}

/// The images of a file alone: their number, the shape of one, and their values.
pub(crate) fn images(file: &Path) -> Result<(u64, Vec<usize>, Store), DataError> {
    let pictures = Array::open(file, 2..=4, "00 00 08 03 (images)")?;
    let shape = match pictures.dims[1..] {
        [height, width] => vec![1, height, width],
        ref shape => shape.to_vec(),
    };
    if shape.contains(&0) {
        return Err(DataError::Empty { file: file.to_owned() });
    }
    let store = Store::Bytes { bytes: pictures.bytes, offset: pictures.offset };
    Ok((pictures.dims[0] as u64, shape, store))
}

/// The labels of a file alone.
pub(crate) fn labels(file: &Path) -> Result<Vec<f64>, DataError> {
    let labels = Array::open(file, 1..=1, "00 00 08 01 (labels)")?;
    Ok(labels.bytes[labels.offset..].iter().map(|label| f64::from(*label)).collect())
}

fn table(images: &Path, labels: &Path, classes: Option<u32>) -> Result<Table, DataError> {
    let pictures = Array::open(images, 2..=4, "00 00 08 03 (images)")?;
    let names = Array::open(labels, 1..=1, "00 00 08 01 (labels)")?;
    let (rows, targets) = (pictures.dims[0] as u64, names.dims[0] as u64);
    if rows != targets {
        return Err(DataError::CountMismatch {
            inputs_file: images.to_owned(),
            inputs: rows,
            targets_file: labels.to_owned(),
            targets,
        });
    }
    let shape = match pictures.dims[1..] {
        [height, width] => vec![1, height, width],
        ref shape => shape.to_vec(),
    };
    if rows > 0 && shape.contains(&0) {
        return Err(DataError::Empty { file: images.to_owned() });
    }
    let labelled = (1..).zip(&names.bytes[names.offset..]);
    let targets = labelled.map(|(row, label)| class_of(labels, row, i64::from(*label), classes));
    Ok(Table {
        file: images.to_owned(),
        rows,
        shape,
        targets: Targets::Classes(targets.collect::<Result<_, _>>()?),
        store: Store::Bytes { bytes: pictures.bytes, offset: pictures.offset },
        features: Vec::new(),
        groups: None,
    })
}

/// One file: its dimensions, and where its elements begin.
struct Array {
    dims: Vec<usize>,
    bytes: Bytes,
    offset: usize,
}

impl Array {
    fn open(
        file: &Path,
        dimensions: std::ops::RangeInclusive<u8>,
        expected: &'static str,
    ) -> Result<Self, DataError> {
        let bytes = Bytes::open(file, NEEDS)?;
        if bytes.is_empty() {
            return Err(DataError::Empty { file: file.to_owned() });
        }
        let magic = bytes.get(..4).unwrap_or(&bytes);
        match *magic {
            [0, 0, UNSIGNED_BYTE, count] if dimensions.contains(&count) => {}
            [0, 0, kind @ (0x09 | 0x0B..=0x0E), count] if dimensions.contains(&count) => {
                let (expected, got) = ("unsigned bytes (08)", format!("{kind:02x}"));
                return Err(DataError::ElementType { file: file.to_owned(), expected, got });
            }
            _ => {
                let got = magic.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
                return Err(DataError::WrongMagic { file: file.to_owned(), expected, got });
            }
        }
        let offset = 4 + 4 * usize::from(magic[3]);
        let short =
            |expected| DataError::WrongLength { file: file.to_owned(), expected, got: bytes.len() as u64 };
        let sizes = bytes.get(4..offset).ok_or_else(|| short(offset as u64))?;
        let dims: Vec<usize> =
            sizes.chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize).collect();
        // Four dimensions of 32 bits can exceed 64; no file is that long, so saturating tells the same.
        let elements = dims.iter().fold(1u64, |all, dim| all.saturating_mul(*dim as u64));
        let expected = elements.saturating_add(offset as u64);
        if expected != bytes.len() as u64 {
            return Err(short(expected));
        }
        Ok(Self { dims, bytes, offset })
    }
}
