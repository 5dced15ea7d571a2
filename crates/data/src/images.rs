//! Images in folders, a folder a class: JPEG, PNG and WebP, decoded when they are read.
//!
//! It does not know how a picture is decoded or kept; see the files below.

mod folder;
mod picture;
mod pictures;

use crate::file_groups::FileGroup;
use crate::rows::{Recipe, Store, Table, Targets, assemble};
use crate::{Augment, DataError, Normalise, Opened, Preparation, TargetSpec, ValSplit};
pub(crate) use folder::NEEDS;
pub use picture::{Colours, PictureForm};
pub(crate) use pictures::Pictures;
use std::path::{Path, PathBuf};

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
    let classes = folder::classes(&train)?;
    let table = |folder: &Path| -> Result<Table, DataError> {
        let (mut files, mut targets) = folder::labelled(folder, &classes)?;
        if options.broken == Broken::Skip {
            (files, targets) = whole(&options.form, files, targets);
        }
        if files.is_empty() {
            return Err(DataError::Empty { file: folder.to_owned() });
        }
        let groups = options.group.as_ref().map(|group| group.groups(folder, &files)).transpose()?;
        let pictures = Pictures::new(files, options.form, options.cache);
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
fn whole(form: &PictureForm, files: Vec<PathBuf>, targets: Vec<u32>) -> (Vec<PathBuf>, Vec<u32>) {
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

/// Images that are to be predicted.
#[derive(Clone, Debug)]
pub struct ImageFiles {
    files: Vec<PathBuf>,
    form: PictureForm,
}

impl ImageFiles {
    /// Those of a folder and of the folders in it, in the order of their paths, or one file; nothing if the model takes no images, or if
    /// the file is none.
    ///
    /// *Errors*: a folder without images, or that cannot be read.
    pub fn open(path: &Path, preparation: &Preparation) -> Result<Option<Self>, DataError> {
        let Some(form) = preparation.picture else { return Ok(None) };
        let files = match path.is_dir() {
            true => folder::all(path)?,
            false if folder::is_image(path) => vec![path.to_owned()],
            false => return Ok(None),
        };
        if files.is_empty() {
            return Err(DataError::NoImages { folder: path.to_owned() });
        }
        Ok(Some(Self { files, form }))
    }

    /// Those of a folder with one for each class, each with its class.
    ///
    /// *Errors*: a folder that is no class of the model; see [`ImageFiles::open`]. *Panics* if the model takes no images.
    pub fn labelled(path: &Path, preparation: &Preparation) -> Result<(Self, Vec<u32>), DataError> {
        assert!(matches!(preparation.target, TargetSpec::Class { .. }), "a folder says which class");
        let form = preparation.picture.expect("the model takes images");
        let (files, classes) = folder::labelled(path, &preparation.class_names)?;
        Ok((Self { files, form }, classes))
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// What a model takes: the values of these files, normalised as those of training were.
    ///
    /// *Errors*: a file that cannot be decoded. *Panics* if there are no such files.
    pub fn read(
        &self,
        files: std::ops::Range<usize>,
        preparation: &Preparation,
    ) -> Result<Vec<f32>, DataError> {
        let width: usize = self.form.shape().iter().product();
        let mut values = Vec::with_capacity(files.len() * width);
        for file in &self.files[files] {
            values.extend(self.form.decode(file)?.iter().map(|byte| f32::from(*byte)));
        }
        values.chunks_exact_mut(width).for_each(|row| preparation.normalise(row));
        Ok(values)
    }
}
