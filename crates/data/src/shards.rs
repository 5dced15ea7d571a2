//! Shards: files of many pictures and their classes. A picture is decoded when it is read, from where it is in the mapped file.
//!
//! Here are tar archives, as WebDataset writes them, and what they have in common with Parquet files (`picture_tables.rs`). It does not know
//! how an archive is read or a picture is decoded; see the files below, and `images/picture.rs`.

mod archive;
mod error;
mod samples;

use crate::bytes::Bytes;
use crate::images::{
    Broken, Decoder, PictureForm, Pictures, entries, folders_of, retain, side_by_side, whole,
};
use crate::rows::{Recipe, Store, Table, Targets, assemble, class_of};
use crate::{Augment, DataError, Normalise, Opened, ValSplit};
pub use error::ShardsError;
pub(crate) use samples::LabelNeed;
use samples::{Sample, samples};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What this kind of data is made of.
const NEEDS: &str = "kind tar needs a .tar file, or a folder of them";

/// Which shards, and how they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardsOptions {
    /// A .tar file or a folder of them; or a folder that has `train`, and maybe `val`, of which each is such a folder. Of Parquet: a
    /// .parquet file, or a folder of them, or one whose `data` is such a folder; where names begin with `train`, those are the training
    /// files, and those that begin with `validation`, `val` or `test` are held out.
    pub path: PathBuf,
    /// Shards for validation; without them `val_split` says what is held out.
    pub val_path: Option<PathBuf>,
    /// What is held out if there are none.
    pub val_split: ValSplit,
    /// The number of classes; `None` is what the labels say.
    pub classes: Option<u32>,
    /// What every picture becomes.
    pub form: PictureForm,
    /// What is done about a picture that cannot be decoded.
    pub broken: Broken,
    /// How much is kept of what was decoded. *Units*: bytes.
    pub cache: u64,
    /// Variations of the training pictures.
    pub augment: Augment,
    /// Scaling of the pixels (0 to 255).
    pub normalise: Normalise,
}

/// Pictures that lie together in files.
pub(crate) trait ManyPictures: Decoder + Sized + 'static {
    /// What an error about all of them names.
    fn file(&self) -> &Path;

    /// The class of each.
    ///
    /// *Errors*: one that there is not. *Panics* if they were opened without labels.
    fn classes(&self, known: Option<u32>) -> Result<Vec<u32>, DataError>;

    /// The names of the pictures, as if the files were folders.
    fn names(&self) -> Vec<PathBuf>;

    /// Leaves out those that are not to be kept.
    fn keep(&mut self, kept: &[bool]);
}

pub(crate) fn open(options: &ShardsOptions) -> Result<Opened, DataError> {
    let (train, val) = folders_of(&options.path, options.val_path.as_deref());
    let shards = |path: &Path| Shards::open(path, options.form, LabelNeed::Class);
    let (train, val) = (shards(&train)?, val.map(|val| shards(&val)).transpose()?);
    open_as(options, train, val, Vec::new())
}

/// Pictures for training, and maybe for validation, whose classes have these names, or none.
pub(crate) fn open_as<P: ManyPictures>(
    options: &ShardsOptions,
    train: P,
    val: Option<P>,
    class_names: Vec<String>,
) -> Result<Opened, DataError> {
    let named = u32::try_from(class_names.len()).ok().filter(|names| *names > 0);
    let classes = options.classes.or(named);
    let recipe = Recipe {
        classes,
        split: options.val_split.clone(),
        normalise: options.normalise,
        augment: options.augment,
        class_names: if named == classes { class_names } else { Vec::new() },
        ..Recipe::default()
    };
    let train = table(options, train, classes)?;
    let val = val.map(|val| table(options, val, classes)).transpose()?;
    let mut opened = assemble(train, val, recipe)?;
    if let Some(preparation) = &mut opened.preparation {
        preparation.picture = Some(options.form);
    }
    Ok(opened)
}

fn table<P: ManyPictures>(
    options: &ShardsOptions,
    mut pictures: P,
    classes: Option<u32>,
) -> Result<Table, DataError> {
    let mut targets = pictures.classes(classes)?;
    if options.broken == Broken::Skip {
        let kept = whole(targets.len(), |at| pictures.decode(at))?;
        pictures.keep(&kept);
        retain(&mut targets, &kept);
    }
    let file = pictures.file().to_owned();
    if targets.is_empty() {
        return Err(DataError::Empty { file });
    }
    Ok(Table {
        file,
        rows: targets.len() as u64,
        shape: options.form.shape(),
        store: Store::Pictures(Pictures::new(targets.len(), Arc::new(pictures), options.cache)),
        targets: Targets::Classes(targets),
        features: Vec::new(),
        groups: None,
    })
}

/// The pictures of some archives, one archive after the other.
#[derive(Debug)]
pub(crate) struct Shards {
    /// Where they were found.
    path: PathBuf,
    files: Vec<(PathBuf, Bytes)>,
    pictures: Vec<Picture>,
    form: PictureForm,
}

#[derive(Debug)]
struct Picture {
    /// Which archive it is in.
    shard: usize,
    sample: Sample,
}

impl Shards {
    /// Whether a path is an archive, or a folder that has some.
    pub fn are(path: &Path) -> bool {
        match path.is_dir() {
            true => entries(path, NEEDS).is_ok_and(|entries| entries.iter().any(|entry| is_shard(entry))),
            false => is_shard(path),
        }
    }

    /// Opens an archive, or those of a folder in the order of their names.
    ///
    /// *Errors*: there is none; see [`ShardsError`].
    pub fn open(path: &Path, form: PictureForm, labels: LabelNeed) -> Result<Self, DataError> {
        let mut paths = vec![path.to_owned()];
        if path.is_dir() {
            paths = entries(path, NEEDS)?;
            paths.retain(|path| is_shard(path));
        }
        if paths.is_empty() {
            return Err(ShardsError::NoShards { folder: path.to_owned() }.into());
        }
        let open = |at: usize| {
            let bytes = plain(&paths[at])?;
            let samples = samples(&paths[at], &bytes, labels)?;
            Ok::<_, DataError>((bytes, samples))
        };
        let opened = side_by_side(paths.len(), open).into_iter().collect::<Result<Vec<_>, _>>()?;
        let (mut files, mut pictures) = (Vec::new(), Vec::new());
        for (shard, (path, (bytes, samples))) in paths.into_iter().zip(opened).enumerate() {
            pictures.extend(samples.into_iter().map(|sample| Picture { shard, sample }));
            files.push((path, bytes));
        }
        Ok(Self { path: path.to_owned(), files, pictures, form })
    }

    fn name(&self, picture: &Picture) -> PathBuf {
        self.files[picture.shard].0.join(&picture.sample.picture.name)
    }
}

impl ManyPictures for Shards {
    fn file(&self) -> &Path {
        &self.path
    }

    fn classes(&self, known: Option<u32>) -> Result<Vec<u32>, DataError> {
        let class = |(row, picture): (u64, &Picture)| {
            let class = picture.sample.class.expect("labels were needed");
            class_of(&self.name(picture), row, i64::try_from(class).unwrap_or(i64::MAX), known)
        };
        (0..).zip(&self.pictures).map(class).collect()
    }

    fn names(&self) -> Vec<PathBuf> {
        self.pictures.iter().map(|picture| self.name(picture)).collect()
    }

    fn keep(&mut self, kept: &[bool]) {
        retain(&mut self.pictures, kept);
    }
}

impl Decoder for Shards {
    fn decode(&self, row: usize) -> Result<Box<[u8]>, DataError> {
        let Picture { shard, sample } = &self.pictures[row];
        let member = &sample.picture;
        let bytes = &self.files[*shard].1[member.offset..member.offset + member.size];
        self.form.of_bytes(bytes).map_err(|reason| {
            let file = self.name(&self.pictures[row]);
            DataError::Picture { file, reason }
        })
    }
}

fn is_shard(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tar")) && !path.is_dir()
}

/// The bytes of a file that is not compressed: to read one member of one that is, all before it is unpacked.
fn plain(path: &Path) -> Result<Bytes, DataError> {
    use std::io::Read;
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(6).read_to_end(&mut start));
    read.map_err(|error| DataError::io(path, NEEDS, error))?;
    let compressed: [&[u8]; 4] = [&[0x1f, 0x8b], b"BZh", &[0xfd, b'7', b'z'], &[0x28, 0xb5, 0x2f, 0xfd]];
    if compressed.iter().any(|magic| start.starts_with(magic)) {
        return Err(ShardsError::Compressed { file: path.to_owned() }.into());
    }
    Bytes::open(path, NEEDS)
}
