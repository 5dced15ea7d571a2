//! Images in folders, a folder a class or beside a table of labels: JPEG, PNG and WebP, decoded when they are read.
//!
//! It does not know how a picture is decoded or kept; see the files below.

mod error;
mod folder;
mod labels;
mod picture;
mod pictures;

use crate::file_groups::{FileGroup, Folders};
use crate::groups::Groups;
use crate::rows::{Recipe, Store, Table, Targets, assemble};
use crate::{Augment, DataError, Normalise, Opened, ValSplit};
pub use error::LabelsError;
pub(crate) use folder::{
    all, class_folders, classes as classes_of, entries, is_image, labelled, name, parts as folders_of,
};
pub use labels::LabelTable;
pub use picture::{Colours, PictureForm};
pub(crate) use pictures::{Decode, Decoder, Files, Pictures, side_by_side};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which folder of images, and how they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagesOptions {
    /// The folder, which has one for each class; or one that has `train`, and maybe `val`, of which each is such a folder. With
    /// `labels` the folder that names are looked for in.
    pub path: PathBuf,
    /// A folder for validation; without one `val_split` says what is held out.
    pub val_path: Option<PathBuf>,
    /// What says of which class images are, if folders do not.
    pub labels: Option<LabelTable>,
    /// What is held out if there is no such folder.
    pub val_split: ValSplit,
    /// What says which images are held out together.
    pub group: Option<FileGroup>,
    /// What every image becomes.
    pub form: PictureForm,
    /// What is done about a file that cannot be decoded.
    pub broken: Broken,
    /// How much is kept of what was decoded. *Units*: bytes.
    pub cache: u64,
    /// Variations of the training images.
    pub augment: Augment,
    /// Scaling of the pixels (0 to 255).
    pub normalise: Normalise,
}

/// What is done about a file that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Broken {
    /// An error that names it, where it is read.
    #[default]
    Refuse,
    /// It is left out, with a warning: all files are decoded before the first step.
    Skip,
}

/// Files with their classes, before they are looked into.
struct Listed {
    folder: PathBuf,
    files: Vec<PathBuf>,
    targets: Vec<u32>,
    /// By file, where a column says so.
    groups: Option<Vec<String>>,
}

pub(crate) fn open(options: &ImagesOptions) -> Result<Opened, DataError> {
    let (train, val, classes) = match &options.labels {
        None => by_folders(options)?,
        Some(labels) => by_table(options, labels)?,
    };
    let val = val.map(|listed| table(options, listed)).transpose()?;
    let recipe = Recipe {
        classes: Some(classes.len() as u32),
        split: options.val_split.clone(),
        normalise: options.normalise,
        augment: options.augment,
        class_names: classes,
        ..Recipe::default()
    };
    let mut opened = assemble(table(options, train)?, val, recipe)?;
    if let Some(preparation) = &mut opened.preparation {
        preparation.picture = Some(options.form);
    }
    Ok(opened)
}

fn by_folders(options: &ImagesOptions) -> Result<(Listed, Option<Listed>, Vec<String>), DataError> {
    let (train, val) = folder::parts(&options.path, options.val_path.as_deref());
    let classes = folder::classes(&train, folder::NEEDS)?;
    let listed = |folder: PathBuf| {
        let (files, targets) = folder::labelled(&folder, &classes)?;
        Ok::<_, DataError>(Listed { folder, files, targets, groups: None })
    };
    Ok((listed(train)?, val.map(listed).transpose()?, classes))
}

fn by_table(
    options: &ImagesOptions,
    labels: &LabelTable,
) -> Result<(Listed, Option<Listed>, Vec<String>), DataError> {
    let train = labels.read(&labels.path, &options.path)?;
    let classes = train.classes();
    let listed = |labelled: labels::Labelled, file: &Path, folder: &Path| {
        let targets = labelled.targets(&classes, file)?;
        let labels::Labelled { files, groups, .. } = labelled;
        Ok::<_, DataError>(Listed { folder: folder.to_owned(), files, targets, groups })
    };
    let train = listed(train, &labels.path, &options.path)?;
    let val = match &labels.val {
        None => None,
        Some(file) => {
            let folder = options.val_path.as_ref().unwrap_or(&options.path);
            Some(listed(labels.read(file, folder)?, file, folder)?)
        }
    };
    Ok((train, val, classes))
}

fn table(options: &ImagesOptions, listed: Listed) -> Result<Table, DataError> {
    let Listed { folder, mut files, mut targets, mut groups } = listed;
    if options.broken == Broken::Skip {
        let kept = whole(files.len(), |at| options.form.decode(&files[at]))?;
        retain(&mut files, &kept);
        retain(&mut targets, &kept);
        groups.iter_mut().for_each(|groups| retain(groups, &kept));
    }
    if files.is_empty() {
        return Err(DataError::Empty { file: folder });
    }
    let folders = if options.labels.is_some() { Folders::OfGroups } else { Folders::OfClasses };
    let groups = match groups {
        Some(names) => Some(Groups::of(names.iter().map(String::as_str))),
        None => options.group.as_ref().map(|group| group.groups(&folder, &files, folders)).transpose()?,
    };
    let pictures = Pictures::of_files(files, Arc::new(options.form), options.cache);
    Ok(Table {
        file: folder,
        rows: targets.len() as u64,
        shape: options.form.shape(),
        store: Store::Pictures(pictures),
        targets: Targets::Classes(targets),
        features: Vec::new(),
        groups,
    })
}

/// Which of so many samples can be decoded.
///
/// *Errors*: one cannot, and the machine is the cause.
pub(crate) fn whole(
    count: usize,
    decode: impl Fn(usize) -> Result<Box<[u8]>, DataError> + Sync,
) -> Result<Vec<bool>, DataError> {
    let decoded = side_by_side(count, |at| decode(at).map(drop));
    let told = |decoded: Result<(), DataError>| match decoded {
        Ok(()) => Ok(true),
        // Another rank might not leave it out.
        Err(DataError::Video { file, why }) if why.is_of_the_machine() => Err(DataError::Video { file, why }),
        Err(error) => {
            tracing::warn!("left out, as data.broken=skip says: {error}");
            Ok(false)
        }
    };
    decoded.into_iter().map(told).collect()
}

/// Keeps what is marked.
pub(crate) fn retain<T>(all: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    all.retain(|_| kept.next().is_some_and(|kept| *kept));
}
