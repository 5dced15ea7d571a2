//! Reductions of plain numbers, element by element, left to right.

use crate::last_error::Failure;
use nccl_sys::{ncclDataType_t, ncclRedOp_t};

/// Bytes of one element; none for a type that there is not.
pub(crate) fn size_of_type(kind: ncclDataType_t) -> Result<usize, Failure> {
    use ncclDataType_t as T;
    match kind {
        T::ncclInt8 | T::ncclUint8 | T::ncclFloat8e4m3 | T::ncclFloat8e5m2 => Ok(1),
        T::ncclFloat16 | T::ncclBfloat16 => Ok(2),
        T::ncclInt32 | T::ncclUint32 | T::ncclFloat32 => Ok(4),
        T::ncclInt64 | T::ncclUint64 | T::ncclFloat64 => Ok(8),
        ncclDataType_t(other) => Err(Failure::argument(format!("there is no data type {other}"))),
    }
}

/// Adds `right` to `left` in place; the count is in the bytes. Division by `world` makes the mean.
type Fold = fn(left: &mut [u8], right: &[u8]);

macro_rules! fold {
    ($number:ty, $with:expr) => {
        |left: &mut [u8], right: &[u8]| {
            let with: fn($number, $number) -> $number = $with;
            for (left, right) in left.as_chunks_mut().0.iter_mut().zip(right.as_chunks().0) {
                *left = with(<$number>::from_ne_bytes(*left), <$number>::from_ne_bytes(*right)).to_ne_bytes();
            }
        }
    };
}

macro_rules! integer {
    ($number:ty, $op:expr) => {
        match $op {
            ncclRedOp_t::ncclSum => Some(fold!($number, |a, b| a.wrapping_add(b)) as Fold),
            ncclRedOp_t::ncclProd => Some(fold!($number, |a, b| a.wrapping_mul(b)) as Fold),
            ncclRedOp_t::ncclMax => Some(fold!($number, |a, b| a.max(b)) as Fold),
            ncclRedOp_t::ncclMin => Some(fold!($number, |a, b| a.min(b)) as Fold),
            _ => None,
        }
    };
}

macro_rules! float {
    ($number:ty, $op:expr) => {
        match $op {
            ncclRedOp_t::ncclSum => Some(fold!($number, |a, b| a + b) as Fold),
            ncclRedOp_t::ncclProd => Some(fold!($number, |a, b| a * b) as Fold),
            ncclRedOp_t::ncclMax => Some(fold!($number, |a, b| a.max(b)) as Fold),
            ncclRedOp_t::ncclMin => Some(fold!($number, |a, b| a.min(b)) as Fold),
            _ => None,
        }
    };
}

/// How two buffers of a type are reduced into one.
pub(crate) fn fold_of(kind: ncclDataType_t, op: ncclRedOp_t) -> Result<Fold, Failure> {
    use ncclDataType_t as T;
    let fold = match kind {
        T::ncclInt8 => integer!(i8, op),
        T::ncclUint8 => integer!(u8, op),
        T::ncclInt32 => integer!(i32, op),
        T::ncclUint32 => integer!(u32, op),
        T::ncclInt64 => integer!(i64, op),
        T::ncclUint64 => integer!(u64, op),
        T::ncclFloat32 => float!(f32, op),
        T::ncclFloat64 => float!(f64, op),
        _ => None,
    };
    fold.ok_or_else(|| {
        Failure::argument(format!("this library does not reduce type {} by operation {}", kind.0, op.0))
    })
}
