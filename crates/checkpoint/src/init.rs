//! Starting from somebody's tensors: a safetensors file of any origin, matched by name and shape.
//!
//! Only what a model is made of is taken: the sections that the caller hands in. Half-precision values are widened,
//! which is exact. Nothing is guessed: a missing, unexpected or misshapen tensor is an error, and all of them are
//! told at once. Who wrote the file may have called and turned its tensors otherwise: that the caller says.

use crate::tensor_file::TensorFile;
use crate::{Fault, TensorSpec};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A section to fill.
#[derive(Debug)]
pub struct SectionMut<'a> {
    /// Its name, such as [`crate::PARAMETERS`].
    pub name: &'a str,
    /// Its elements.
    pub data: &'a mut [f32],
}

/// Why a file cannot be started from.
#[derive(Debug, Error)]
pub enum InitError {
    /// It cannot be read as safetensors.
    #[error("{}: {fault}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Its tensors are not those of the model.
    #[error("{} does not fit the model: {}", path.display(), told(problems))]
    Misfit {
        /// The file.
        path: PathBuf,
        /// Everything that does not fit, a sentence each.
        problems: Vec<String>,
    },
}

/// The first few of many.
fn told(problems: &[String]) -> String {
    const TOLD: usize = 8;
    let mut text = problems.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
    if problems.len() > TOLD {
        text += &format!("; and {} more", problems.len() - TOLD);
    }
    text
}

/// How a tensor lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// As in the model.
    Same,
    /// A matrix with rows for columns.
    Turned,
    /// With more rows behind those of the model.
    Longer,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its name there.
    pub name: String,
    /// How it lies there.
    pub lies: Lies,
}

/// What a file calls the model's tensors.
pub trait Names {
    /// The tensor of the file that the one of this name is read from.
    fn of(&self, tensor: &str) -> Given;

    /// Whether a tensor of the file is no parameter.
    fn is_no_parameter(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}

/// The names of the model.
#[derive(Clone, Copy, Debug)]
pub struct OwnNames;

impl Names for OwnNames {
    fn of(&self, tensor: &str) -> Given {
        Given { name: tensor.to_owned(), lies: Lies::Same }
    }
}

/// Fills `sections` from the file at `path`, which has these names; gives how many tensors were read. A folder stands for its
/// `model.safetensors`, or for the files that its `model.safetensors.index.json` names.
///
/// Every tensor that `specs` places in one of `sections` must be there. A tensor of the file that `specs` does not
/// name is an error; one that it places in another section (an optimizer's) is passed over.
///
/// *Errors*: see [`InitError`]; on [`InitError::Misfit`] nothing was written. *Panics* if a section is shorter than
/// `specs` says.
pub fn init_from(
    path: &Path,
    names: &dyn Names,
    specs: &[TensorSpec],
    sections: &mut [SectionMut<'_>],
) -> Result<usize, InitError> {
    let mut files = TensorFiles::open(path)?;
    let filled = |spec: &&TensorSpec| sections.iter().any(|section| section.name == spec.section);
    let wanted: Vec<&TensorSpec> = specs.iter().filter(filled).collect();
    let problems = misfits(&files, names, specs, &wanted);
    if !problems.is_empty() {
        return Err(InitError::Misfit { path: path.to_owned(), problems });
    }
    for spec in &wanted {
        let section = sections.iter_mut().find(|section| section.name == spec.section);
        let place = &mut section.expect("a wanted section").data[spec.offset..spec.end()];
        let given = names.of(&spec.name);
        let kind = files.info(&given.name).expect("a tensor found before").dtype;
        // The sides of a matrix that is turned.
        let [columns, rows] = match spec.shape[..] {
            [outputs, inputs] => [outputs, inputs],
            _ => [1; 2],
        };
        let goes_to = |i: usize| match given.lies {
            Lies::Same | Lies::Longer => i,
            Lies::Turned => i % columns * rows + i / columns,
        };
        let mut read = 0;
        files.stream(&given.name, |bytes| {
            let before = read;
            read += widen(kind, bytes, |i, value| {
                // There is no place for what is longer.
                if let Some(place) = place.get_mut(goes_to(before + i)) {
                    *place = value;
                }
            });
        })?;
    }
    Ok(wanted.len())
}

/// The files that a model lies in.
struct TensorFiles {
    files: Vec<(PathBuf, TensorFile)>,
}

impl TensorFiles {
    fn open(path: &Path) -> Result<Self, InitError> {
        let files = files_of(path)?.into_iter().map(|path| {
            let file = open(&path).map_err(|fault| InitError::File { path: path.clone(), fault })?;
            Ok((path, file))
        });
        Ok(Self { files: files.collect::<Result<_, _>>()? })
    }

    fn names(&self) -> Vec<String> {
        self.files.iter().flat_map(|(_, file)| file.names()).collect()
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.files.iter().find_map(|(_, file)| file.info(name))
    }

    fn stream(&mut self, name: &str, each: impl FnMut(&[u8])) -> Result<(), InitError> {
        let (path, file) =
            self.files.iter_mut().find(|(_, file)| file.info(name).is_some()).expect("a tensor found before");
        file.stream(name, each).map_err(|fault| InitError::File { path: path.clone(), fault })
    }
}

fn open(path: &Path) -> Result<TensorFile, Fault> {
    let input = File::open(path)?;
    let metadata = input.metadata()?;
    if !metadata.is_file() {
        return Err(Fault::NotAFile);
    }
    TensorFile::open(Box::new(input), metadata.len())
}

/// What others call the file of a model, and the one that says which files there are where they are several.
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The file, or those of a folder.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, InitError> {
    let index = match path.is_dir() {
        true if path.join(WHOLE).exists() => return Ok(vec![path.join(WHOLE)]),
        true => path.join(INDEX),
        false if path.file_name().is_some_and(|name| name == INDEX) => path.to_owned(),
        false => return Ok(vec![path.to_owned()]),
    };
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let fail = |fault| InitError::File { path: index.clone(), fault };
    let text = std::fs::read(&index).map_err(|error| fail(error.into()))?;
    let Index { weight_map } =
        serde_json::from_slice(&text).map_err(|error| fail(Fault::NotSafetensors(error.to_string())))?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    if let Some(name) = names.iter().find(|name| Path::new(name).components().count() != 1) {
        return Err(fail(Fault::NotSafetensors(format!("{name} is no file beside it"))));
    }
    Ok(names.into_iter().map(|name| index.with_file_name(name)).collect())
}

fn misfits(
    file: &TensorFiles,
    names: &dyn Names,
    specs: &[TensorSpec],
    wanted: &[&TensorSpec],
) -> Vec<String> {
    let mut problems = Vec::new();
    for spec in wanted {
        let Given { name, lies } = names.of(&spec.name);
        let mut needed = spec.shape.clone();
        if lies == Lies::Turned {
            needed.reverse();
        }
        let fits = |shape: &[usize]| match lies {
            Lies::Longer => shape.len() == needed.len() && shape[0] >= needed[0] && shape[1..] == needed[1..],
            Lies::Same | Lies::Turned => shape == needed,
        };
        match file.info(&name) {
            None => problems.push(format!("tensor `{name}` is missing")),
            Some(info) if !fits(&info.shape) => problems
                .push(format!("tensor `{name}` has shape {:?}, the model needs {needed:?}", info.shape)),
            Some(info) if !matches!(info.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) => problems
                .push(format!("tensor `{name}` is {}, which is not one of F32, BF16, F16", info.dtype)),
            Some(_) => {}
        }
    }
    let known: BTreeSet<String> = specs.iter().map(|spec| names.of(&spec.name).name).collect();
    let unexpected =
        file.names().into_iter().filter(|name| !known.contains(name) && !names.is_no_parameter(name));
    problems.extend(unexpected.map(|name| format!("tensor `{name}` is not one of the model's")));
    problems
}

/// Hands on bytes of one kind as `f32` values with their numbers; gives how many. Pieces hold whole elements.
fn widen(kind: Dtype, bytes: &[u8], mut to: impl FnMut(usize, f32)) -> usize {
    if kind == Dtype::F32 {
        let (values, _) = bytes.as_chunks::<4>();
        values.iter().enumerate().for_each(|(i, value)| to(i, f32::from_le_bytes(*value)));
        return values.len();
    }
    let (values, _) = bytes.as_chunks::<2>();
    for (i, value) in values.iter().enumerate() {
        let bits = u16::from_le_bytes(*value);
        to(i, if kind == Dtype::BF16 { f32::from_bits(u32::from(bits) << 16) } else { from_f16(bits) });
    }
    values.len()
}

/// The value of an IEEE 754 half-precision number, exactly.
fn from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, mantissa) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    match exponent {
        // A subnormal is a whole number of 2^-24; the product is exact.
        0 => f32::from_bits((mantissa as f32 * 2f32.powi(-24)).to_bits() | sign),
        0x1f => f32::from_bits(sign | 0x7f80_0000 | mantissa << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | mantissa << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_precision_number_has_its_value() {
        for bits in 0..=u16::MAX {
            let (exponent, mantissa) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
            let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
            let got = f64::from(from_f16(bits));
            match exponent {
                0x1f if mantissa != 0.0 => assert!(got.is_nan(), "{bits:04x}"),
                0x1f => assert_eq!(got, sign * f64::INFINITY, "{bits:04x}"),
                0 => assert_eq!(got, sign * mantissa * 2f64.powi(-24), "{bits:04x}"),
                _ => assert_eq!(got, sign * (1024.0 + mantissa) * 2f64.powi(exponent - 25), "{bits:04x}"),
            }
            assert_eq!(got.is_sign_negative(), bits & 0x8000 != 0, "{bits:04x}");
        }
    }
}
