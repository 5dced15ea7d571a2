//! Starting from somebody's tensors: a safetensors file of any origin, matched by name and shape.
//!
//! Only what a model is made of is taken: the sections that the caller hands in. Half-precision values are widened,
//! which is exact. Nothing is guessed: a missing, unexpected or misshapen tensor is an error, and all of them are
//! told at once.

use crate::tensor_file::{TensorFile, values_from};
use crate::{Fault, TensorSpec};
use safetensors::Dtype;
use std::collections::BTreeSet;
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

/// Fills `sections` from the file at `path`; gives how many tensors were read.
///
/// Every tensor that `specs` places in one of `sections` must be there. A tensor of the file that `specs` does not
/// name is an error; one that it places in another section (an optimizer's) is passed over.
///
/// *Errors*: see [`InitError`]; on [`InitError::Misfit`] nothing was written. *Panics* if a section is shorter than
/// `specs` says.
pub fn init_from(
    path: &Path,
    specs: &[TensorSpec],
    sections: &mut [SectionMut<'_>],
) -> Result<usize, InitError> {
    let fail = |fault| InitError::File { path: path.to_owned(), fault };
    let input = File::open(path).map_err(|error| fail(error.into()))?;
    let metadata = input.metadata().map_err(|error| fail(error.into()))?;
    if !metadata.is_file() {
        return Err(fail(Fault::NotAFile));
    }
    let mut file = TensorFile::open(Box::new(input), metadata.len()).map_err(fail)?;
    let filled = |spec: &&TensorSpec| sections.iter().any(|section| section.name == spec.section);
    let wanted: Vec<&TensorSpec> = specs.iter().filter(filled).collect();
    let problems = misfits(&file, specs, &wanted);
    if !problems.is_empty() {
        return Err(InitError::Misfit { path: path.to_owned(), problems });
    }
    for spec in &wanted {
        let section = sections.iter_mut().find(|section| section.name == spec.section);
        let place = &mut section.expect("a wanted section").data[spec.offset..spec.end()];
        let kind = file.info(&spec.name).expect("a tensor found before").dtype;
        let mut at = 0;
        file.stream(&spec.name, |bytes| at += widen(kind, bytes, &mut place[at..])).map_err(fail)?;
    }
    Ok(wanted.len())
}

fn misfits(file: &TensorFile, specs: &[TensorSpec], wanted: &[&TensorSpec]) -> Vec<String> {
    let mut problems = Vec::new();
    for spec in wanted {
        match file.info(&spec.name) {
            None => problems.push(format!("tensor `{}` is missing", spec.name)),
            Some(info) if info.shape != spec.shape => problems.push(format!(
                "tensor `{}` has shape {:?}, the model needs {:?}",
                spec.name, info.shape, spec.shape
            )),
            Some(info) if !matches!(info.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) => problems.push(
                format!("tensor `{}` is {}, which is not one of F32, BF16, F16", spec.name, info.dtype),
            ),
            Some(_) => {}
        }
    }
    let known: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let unexpected = file.names().into_iter().filter(|name| !known.contains(name.as_str()));
    problems.extend(unexpected.map(|name| format!("tensor `{name}` is not one of the model's")));
    problems
}

/// Turns bytes of one kind into `f32` values; gives how many. Pieces hold whole elements.
fn widen(kind: Dtype, bytes: &[u8], out: &mut [f32]) -> usize {
    if kind == Dtype::F32 {
        values_from(bytes, &mut out[..bytes.len() / 4]);
        return bytes.len() / 4;
    }
    for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
        *value = if kind == Dtype::BF16 { f32::from_bits(u32::from(bits) << 16) } else { from_f16(bits) };
    }
    bytes.len() / 2
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
