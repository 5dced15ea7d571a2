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

/// What a run has of them.
#[derive(Clone, Debug)]
pub struct FrozenParameters {
    /// The values, in the order of the model's.
    pub values: Frozen,
    /// That of all that the run has.
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

/// Writes those of a model into the folder of its run, if there are any, and gives them as they are there.
///
/// *Blocks* on the disk. *Errors*: it fails. *Panics* if the values are not those of this layout.
pub fn keep(run: &Path, layout: &Layout, values: &[f32]) -> Result<Option<FrozenParameters>, CliError> {
    if values.is_empty() {
        return Ok(None);
    }
    let written = write_frozen(run, &frozen_specs(layout), values);
    written.map_err(|error| {
        CliError::failed("the parameters that stay as they are cannot be kept").because(&error)
    })?;
    read(run, layout).map(Some)
}

/// Those of the run in this folder, for a model of this layout: tables of places may be shorter in it.
///
/// *Blocks* on the disk. *Errors*: the file is missing, damaged, or of another model.
pub fn read(run: &Path, layout: &Layout) -> Result<FrozenParameters, CliError> {
    let path = run.join(FROZEN_FILE);
    let fail = |fault: &Fault| {
        let message = format!("{} cannot be used", path.display());
        let error = CliError::failed(message).because(fault);
        error.hint(
            "it holds the parameters that the run leaves as they are: put it back from a copy, or begin anew",
        )
    };
    let header = FrozenHeader::read(&path).map_err(|fault| fail(&fault))?;
    let file = File::open(&path).and_then(|file| Mapping::of(&file));
    let file = file.map_err(|error| fail(&Fault::Unreadable(error)))?;
    if file.len() < header.values.end {
        return Err(fail(&Fault::Truncated { expected: header.values.end as u64, got: file.len() as u64 }));
    }
    let mapped = Mapped { file, values: header.values.clone() };
    header.check(mapped.bytes()).map_err(|fault| fail(&fault))?;
    let specs = frozen_specs(layout);
    let is_as_it_lies = specs.len() == header.tensors.len()
        && specs
            .iter()
            .zip(&header.tensors)
            .all(|(spec, (name, shape))| spec.name == *name && spec.shape == *shape);
    let values = match is_as_it_lies {
        true => Frozen::new(mapped),
        false => picked(&specs, &header, mapped.as_ref()).map_err(|fault| fail(&fault))?,
    };
    Ok(FrozenParameters { values, digest: header.digest })
}

/// The parameters of another layout out of all: of tensors with more rows the first.
fn picked(specs: &[TensorSpec], header: &FrozenHeader, all: &[f32]) -> Result<Frozen, Fault> {
    let mut values = Flat::zeros(specs.last().map_or(0, TensorSpec::end));
    for spec in specs {
        let mut at = 0;
        let found = header.tensors.iter().find_map(|(name, shape)| {
            let from = at;
            at += shape.iter().product::<usize>();
            (*name == spec.name).then_some((from, shape))
        });
        let (from, shape) = found.ok_or_else(|| Fault::MissingTensor(spec.name.clone()))?;
        let fits = shape.get(1..) == spec.shape.get(1..) && shape.first() >= spec.shape.first();
        if !fits {
            return Err(Fault::NotSafetensors(format!("{} has another shape", spec.name)));
        }
        values[spec.offset..spec.end()].copy_from_slice(&all[from..from + spec.len]);
    }
    Ok(values.into())
}
