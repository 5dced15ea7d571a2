//! What a product is to compute, as its descriptors say it, if the library does that.
//!
//! The table of types is NVIDIA's for `CUBLAS_COMPUTE_32F` with factors of f32: A and B are of one type, C and D of one type,
//! which is that of A or f32, and a bias has the type of D. Faster f32 by TF32 is for f32 alone.

use crate::attributes::Attributes;
use crate::matrix::{Matrix, numbers};
use crate::objects::{
    AS_D, BATCHES, BIAS_POINTER, BIAS_TYPE, COLUMNS, COMPUTE_TYPE, EPILOGUE, KEPT_PITCH, KEPT_POINTER, ORDER,
    PITCH, POINTER_MODE, ROWS, SCALE_TYPE, TURNED_A, TURNED_B, TURNED_C, TYPE,
};
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Status};
use dtrain_fake_common::numbers::Numbers;

const COMPUTE_F32: u64 = 68;
const COMPUTE_F32_PEDANTIC: u64 = 69;
const COMPUTE_TF32: u64 = 77;

const RELU: u64 = 2;
const BIAS: u64 = 4;
const GELU: u64 = 32;
const KEPT: u64 = 128;
/// What the distance of columns of what is kept is a multiple of.
const KEPT_ALIGNED: usize = 8;

/// What is done to a sum last.
#[derive(Clone, Copy)]
pub(crate) enum Activation {
    None,
    Relu,
    /// By the hyperbolic tangent; what it is of is kept at this address, columns so far apart. The address may be null.
    Gelu {
        at: usize,
        pitch: usize,
    },
}

#[derive(Clone, Copy)]
pub(crate) struct Problem {
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub d: Matrix,
    pub turned_a: bool,
    pub turned_b: bool,
    /// The length of the sums.
    pub inner: usize,
    pub compute: u32,
    /// The address of a bias, if there is to be one; it may be null.
    pub bias: Option<usize>,
    pub activation: Activation,
}

impl Problem {
    /// *Errors*: `NOT_SUPPORTED` for what this library, or NVIDIA's, does not do; `INVALID_VALUE` for what cannot be.
    pub fn of(product: &Attributes, layouts: [&Attributes; 4]) -> Result<Self, Status> {
        let [a, b, c, d] = layouts.map(matrix);
        let (a, b, c, d) = (a?, b?, c?, d?);
        let compute = product.get(COMPUTE_TYPE);
        let turned = |attribute| match product.get(attribute) {
            0 => Ok(false),
            1 => Ok(true),
            // The conjugate of a real matrix, which NVIDIA leaves open.
            _ => Err(NOT_SUPPORTED),
        };
        let (turned_a, turned_b) = (turned(TURNED_A)?, turned(TURNED_B)?);
        let epilogue = match product.get(EPILOGUE) {
            1 => 0,
            known @ (RELU | BIAS) => known,
            6 => RELU | BIAS,
            164 => GELU | KEPT | BIAS,
            _ => return Err(NOT_SUPPORTED),
        };
        let has_bias = epilogue & BIAS != 0;
        let of_bias = match product.get(BIAS_TYPE) {
            AS_D => Some(d.numbers),
            kind => numbers(kind),
        };
        let types = match compute {
            COMPUTE_F32 | COMPUTE_F32_PEDANTIC => d.numbers == a.numbers || d.numbers == Numbers::F32,
            COMPUTE_TF32 => a.numbers == Numbers::F32 && d.numbers == Numbers::F32,
            _ => false,
        };
        let factors = product.get(SCALE_TYPE) == 0 && product.get(POINTER_MODE) == 0;
        let one_type = a.numbers == b.numbers && c.numbers == d.numbers;
        let bias_fits = !has_bias || of_bias == Some(d.numbers);
        if !(types && factors && one_type && bias_fits && product.get(TURNED_C) == 0) {
            return Err(NOT_SUPPORTED);
        }
        let (rows, inner) = if turned_a { (a.columns, a.rows) } else { (a.rows, a.columns) };
        let (depth, columns) = if turned_b { (b.columns, b.rows) } else { (b.rows, b.columns) };
        let fits = |out: &Matrix| out.rows == rows && out.columns == columns;
        if depth != inner || !fits(&c) || !fits(&d) {
            return Err(INVALID_VALUE);
        }
        let bias = has_bias.then(|| product.get(BIAS_POINTER) as usize);
        let (at, pitch) = (product.get(KEPT_POINTER) as usize, product.get(KEPT_PITCH) as usize);
        let activation = match epilogue & (RELU | GELU) {
            RELU => Activation::Relu,
            GELU if pitch < rows || !pitch.is_multiple_of(KEPT_ALIGNED) => return Err(INVALID_VALUE),
            GELU => Activation::Gelu { at, pitch },
            _ => Activation::None,
        };
        let compute = compute as u32;
        Ok(Self { a, b, c, d, turned_a, turned_b, inner, compute, bias, activation })
    }

    /// A, B, C and D.
    pub fn matrices(&self) -> [Matrix; 4] {
        [self.a, self.b, self.c, self.d]
    }
}

/// A matrix by its descriptor.
fn matrix(layout: &Attributes) -> Result<Matrix, Status> {
    let numbers = numbers(layout.get(TYPE)).ok_or(NOT_SUPPORTED)?;
    if layout.get(ORDER) != 0 || layout.get(BATCHES) != 1 {
        return Err(NOT_SUPPORTED);
    }
    let [rows, columns, pitch] = [ROWS, COLUMNS, PITCH].map(|attribute| layout.get(attribute) as usize);
    if rows == 0 || columns == 0 || pitch < rows || pitch as isize <= 0 {
        return Err(INVALID_VALUE);
    }
    Ok(Matrix { numbers, rows, columns, pitch })
}
