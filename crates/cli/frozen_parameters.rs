//! The parameters of a run that training leaves as they are: they lie in its folder once, and whoever computes with them maps that file. So the ranks of
//! a host have one copy of them.
//!
//! It does not know what they begin with, nor which they are.

use crate::error::CliError;
use dtrain_checkpoint::{Digest, FROZEN_FILE, Fault, FrozenHeader, TensorSpec, write_frozen};
use dtrain_data::Mapping;
use dtrain_engine::{Flat, Frozen, Layout};
use dtrain_runtime::frozen_specs;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where those of a run come from.
#[derive(Clone, Debug, Default)]
pub struct FrozenSource {
    /// The folder of the run, where they lie there; none makes them anew.
    pub run: Option<PathBuf>,
    /// What they must be.
    pub digest: Option<Digest>,
}

impl FrozenSource {
    /// What lies in this folder, if something does.
    #[must_use]
    pub fn of(run: &Path) -> Self {
        Self { run: run.join(FROZEN_FILE).exists().then(|| run.to_owned()), digest: None }
    }

    /// The same, which must have this digest.
    #[must_use]
    pub fn with(self, digest: Option<Digest>) -> Self {
        Self { digest, ..self }
    }
}

/// All that a run has of them. Threads share it.
pub struct FrozenParameters {
    /// The file in which they lie.
    path: PathBuf,
    tensors: Vec<(String, Vec<usize>)>,
    values: Frozen,
    /// Their digest.
    pub digest: Digest,
}

/// Floats in a file.
struct Mapped {
    file: Mapping,
    values: Range<usize>,
}

impl Mapped {
    fn bytes(&self) -> &[u8] {
        &self.file[self.values.clone()]
    }
}

impl AsRef<[f32]> for Mapped {
    fn as_ref(&self) -> &[f32] {
        // The file was written so, and its header was read.
        bytemuck::cast_slice(self.bytes())
    }
}

/// Writes those of a model into the folder of its run.
///
/// *Blocks* on the disk. *Errors*: it fails. *Panics* if the values are not those of this layout.
pub fn keep(run: &Path, layout: &Layout, values: &[f32]) -> Result<(), CliError> {
    let written = write_frozen(run, &frozen_specs(layout), values);
    written.map(|_| ()).map_err(|error| {
        CliError::failed("the parameters that stay as they are cannot be kept").because(&error)
    })
}

impl FrozenParameters {
    /// Those of the run in this folder.
    ///
    /// *Blocks* on the disk. *Errors*: the file is missing or damaged.
    pub fn read(run: &Path) -> Result<Self, CliError> {
        let path = run.join(FROZEN_FILE);
        let (header, mapped) = mapped(&path).map_err(|fault| unusable(&path, &fault))?;
        let FrozenHeader { tensors, digest, .. } = header;
        Ok(Self { path, tensors, values: Frozen::new(mapped), digest })
    }

    /// Those of a model of this layout: tables of places may be shorter in it.
    ///
    /// *Errors*: they are of another model.
    pub fn of(&self, layout: &Layout) -> Result<Frozen, CliError> {
        let specs = frozen_specs(layout);
        let is_same = |(spec, (name, shape)): (&TensorSpec, &(String, Vec<usize>))| {
            spec.name == *name && spec.shape == *shape
        };
        if specs.len() == self.tensors.len() && specs.iter().zip(&self.tensors).all(is_same) {
            return Ok(self.values.clone());
        }
        let mut values = Flat::zeros(layout.frozen_len());
        for spec in &specs {
            let to = &mut values[spec.offset..spec.end()];
            to.copy_from_slice(self.first_rows(spec).map_err(|fault| unusable(&self.path, &fault))?);
        }
        Ok(values.into())
    }

    /// A tensor, or the first of its rows where it has more.
    fn first_rows(&self, spec: &TensorSpec) -> Result<&[f32], Fault> {
        let mut at = 0;
        let found = self.tensors.iter().find_map(|(name, shape)| {
            let from = at;
            at += shape.iter().product::<usize>();
            (*name == spec.name).then_some((from, shape))
        });
        let (from, shape) = found.ok_or_else(|| Fault::MissingTensor(spec.name.clone()))?;
        match shape.get(1..) == spec.shape.get(1..) && shape.first() >= spec.shape.first() {
            true => Ok(&self.values[from..from + spec.len]),
            false => Err(Fault::NotSafetensors(format!("{} has another shape", spec.name))),
        }
    }
}

/// A file of such parameters, held against its digest.
fn mapped(path: &Path) -> Result<(FrozenHeader, Mapped), Fault> {
    let header = FrozenHeader::read(path)?;
    let file = Mapping::of(&File::open(path)?)?;
    if file.len() < header.values.end {
        return Err(Fault::Truncated { expected: header.values.end as u64, got: file.len() as u64 });
    }
    let mapped = Mapped { file, values: header.values.clone() };
    header.check(mapped.bytes())?;
    Ok((header, mapped))
}

fn unusable(path: &Path, fault: &Fault) -> CliError {
    CliError::failed(format!("{} cannot be used", path.display())).because(fault).hint(
        "it holds the parameters that the run leaves as they are: put it back from a copy, or begin anew",
    )
}
