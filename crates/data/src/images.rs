//! Images in folders, a folder a class: JPEG, PNG and WebP, decoded when they are read.
//!
//! It does not know how a picture is decoded or kept; see the files below.

mod folder;
mod picture;
mod pictures;

use crate::file_groups::FileGroup;
use crate::rows::{Recipe, Store, Table, Targets, assemble};
use crate::{Augment, DataError, Normalise, Opened, ValSplit};
pub(crate) use folder::{
    all, class_folders, classes as classes_of, entries, is_image, labelled, name, parts as folders_of,
};
pub use picture::{Colours, PictureForm};
pub(crate) use pictures::{Decode, Pictures};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which folder of images, and how they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagesOptions {
    /// The folder, which has one for each class; or one that has `train`, and maybe `val`, of which each is such a folder.
    pub path: PathBuf,
    /// A folder for validation; without one `val_split` says what is held out.
    pub val_path: Option<PathBuf>,
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

pub(crate) fn open(options: &ImagesOptions) -> Result<Opened, DataError> {
    let (train, val) = folder::parts(&options.path, options.val_path.as_deref());
    let classes = folder::classes(&train, folder::NEEDS)?;
    let table = |folder: &Path| -> Result<Table, DataError> {
        let (mut files, mut targets) = folder::labelled(folder, &classes)?;
        if options.broken == Broken::Skip {
            (files, targets) = whole(&options.form, files, targets);
        }
        if files.is_empty() {
            return Err(DataError::Empty { file: folder.to_owned() });
        }
        let groups = options.group.as_ref().map(|group| group.groups(folder, &files)).transpose()?;
        let pictures = Pictures::new(files, Arc::new(options.form), options.cache);
        Ok(Table {
            file: folder.to_owned(),
            rows: targets.len() as u64,
            shape: options.form.shape(),
            store: Store::Pictures(pictures),
            targets: Targets::Classes(targets),
            features: Vec::new(),
            groups,
        })
    };
    let val = val.as_deref().map(table).transpose()?;
    let recipe = Recipe {
        classes: Some(classes.len() as u32),
        split: options.val_split.clone(),
        normalise: options.normalise,
        augment: options.augment,
        class_names: classes.clone(),
        ..Recipe::default()
    };
    let mut opened = assemble(table(&train)?, val, recipe)?;
    if let Some(preparation) = &mut opened.preparation {
        preparation.picture = Some(options.form);
    }
    Ok(opened)
}

/// The files that can be decoded, with their classes.
pub(crate) fn whole(form: &dyn Decode, files: Vec<PathBuf>, targets: Vec<u32>) -> (Vec<PathBuf>, Vec<u32>) {
    let decoded = pictures::side_by_side(files.len(), |at| form.decode(&files[at]).map(drop));
    let mut kept = (Vec::new(), Vec::new());
    for ((file, target), decoded) in files.into_iter().zip(targets).zip(decoded) {
        match decoded {
            Ok(()) => {
                kept.0.push(file);
                kept.1.push(target);
            }
            Err(error) => tracing::warn!("left out, as data.broken=skip says: {error}"),
        }
    }
    kept
}
