//! Clips in folders, a folder a class: each a video, a folder of frames, or an array of them. What becomes of one frame is what becomes of
//! an image.
//!
//! It does not know how a frame is decoded; see `clips/clip.rs`, `clips/ffmpeg.rs` and `images/picture.rs`.

mod child;
mod clip;
mod error;
mod ffmpeg;
mod folder;
mod form;
mod png;

use crate::file_groups::{FileGroup, Folders};
use crate::images::{Broken, Decode, Pictures, classes_of, folders_of, retain, whole};
use crate::rows::{Recipe, Store, Table, Targets, assemble};
use crate::{Augment, DataError, Normalise, Opened, ValSplit};
pub use error::VideoError;
pub use ffmpeg::Ffmpeg;
use folder::NEEDS;
pub(crate) use folder::{all, labelled};
pub use form::ClipForm;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which folder of clips, and how they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipsOptions {
    /// The folder, which has one for each class; or one that has `train`, and maybe `val`, of which each is such a folder.
    pub path: PathBuf,
    /// A folder for validation; without one `val_split` says what is held out.
    pub val_path: Option<PathBuf>,
    /// What is held out if there is no such folder.
    pub val_split: ValSplit,
    /// What says which clips are held out together.
    pub group: Option<FileGroup>,
    /// What every clip becomes.
    pub form: ClipForm,
    /// What is done about a clip that cannot be decoded, or that is too short.
    pub broken: Broken,
    /// How much is kept of what was decoded. *Units*: bytes.
    pub cache: u64,
    /// Variations of the training clips: the same for all frames of one.
    pub augment: Augment,
    /// Scaling of the pixels (0 to 255).
    pub normalise: Normalise,
}

pub(crate) fn open(options: &ClipsOptions) -> Result<Opened, DataError> {
    let (train, val) = folders_of(&options.path, options.val_path.as_deref());
    let classes = classes_of(&train, NEEDS)?;
    let table = |folder: &Path| -> Result<Table, DataError> {
        let (mut files, mut targets) = labelled(folder, &classes)?;
        if options.broken == Broken::Skip {
            let kept = whole(files.len(), |at| options.form.decode(&files[at]))?;
            retain(&mut files, &kept);
            retain(&mut targets, &kept);
        }
        if files.is_empty() {
            return Err(DataError::Empty { file: folder.to_owned() });
        }
        let groups = options
            .group
            .as_ref()
            .map(|group| group.groups(folder, &files, Folders::OfClasses))
            .transpose()?;
        Ok(Table {
            file: folder.to_owned(),
            rows: targets.len() as u64,
            shape: options.form.shape(),
            store: Store::Pictures(Pictures::of_files(files, Arc::new(options.form), options.cache)),
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
        preparation.clip = Some(options.form);
    }
    Ok(opened)
}
