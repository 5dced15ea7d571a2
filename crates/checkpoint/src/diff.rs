//! How two checkpoints differ, tensor by tensor, in bounded memory.

use crate::checkpoint::Reader;
use crate::tensor_file::values_from;
use crate::{Checkpoint, Damage, TensorSpec};
use std::collections::BTreeMap;

/// One tensor of two checkpoints compared.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDiff {
    /// The tensor.
    pub name: String,
    /// What was found.
    pub change: Change,
}

/// How a tensor of the first checkpoint relates to that of the second.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The same bits.
    Same,
    /// The same shape, other bits.
    Differs {
        /// Elements whose bits differ.
        elements: usize,
        /// Elements of the tensor.
        of: usize,
        /// The largest absolute difference; infinite where one side is NaN or infinite.
        max_abs: f64,
        /// The largest distance in representable values; `u32::MAX` where one side alone is NaN.
        max_ulp: u32,
    },
    /// Other shapes.
    Shape {
        /// Shape in the first.
        first: Vec<usize>,
        /// Shape in the second.
        second: Vec<usize>,
    },
    /// Only in the first.
    OnlyFirst,
    /// Only in the second.
    OnlySecond,
}

/// Compares two checkpoints: the first one's tensors in layout order, then those that only the second has.
///
/// *Errors*: a shard of either cannot be read.
pub fn diff(first: &Checkpoint, second: &Checkpoint) -> Result<Vec<TensorDiff>, Damage> {
    let by_name = |checkpoint: &'_ Checkpoint| -> BTreeMap<String, TensorSpec> {
        checkpoint.manifest().tensors.iter().map(|spec| (spec.name.clone(), spec.clone())).collect()
    };
    let (ours, theirs) = (by_name(first), by_name(second));
    let mut readers = (first.reader(), second.reader());
    let mut diffs = Vec::new();
    for spec in &first.manifest().tensors {
        let change = match theirs.get(&spec.name) {
            None => Change::OnlyFirst,
            Some(other) if other.shape != spec.shape => {
                Change::Shape { first: spec.shape.clone(), second: other.shape.clone() }
            }
            Some(_) => compare(&mut readers, &spec.name, spec.len)?,
        };
        diffs.push(TensorDiff { name: spec.name.clone(), change });
    }
    let new = second.manifest().tensors.iter().filter(|other| !ours.contains_key(&other.name));
    diffs.extend(new.map(|other| TensorDiff { name: other.name.clone(), change: Change::OnlySecond }));
    Ok(diffs)
}

fn compare((first, second): &mut (Reader<'_>, Reader<'_>), name: &str, of: usize) -> Result<Change, Damage> {
    // One side is held whole; the other streams past it. A tensor fits into memory: it was made there.
    let (mut values, mut at) = (vec![0.0; of], 0);
    first.stream(name, |bytes| {
        values_from(bytes, &mut values[at..at + bytes.len() / 4]);
        at += bytes.len() / 4;
    })?;
    let (mut elements, mut max_abs, mut max_ulp, mut at) = (0, 0.0f64, 0, 0);
    let mut others = Vec::new();
    second.stream(name, |bytes| {
        others.resize(bytes.len() / 4, 0.0);
        values_from(bytes, &mut others);
        for (a, b) in values[at..].iter().zip(&others) {
            if a.to_bits() != b.to_bits() {
                elements += 1;
                max_abs = max_abs.max(distance(*a, *b));
                max_ulp = max_ulp.max(ulps(*a, *b));
            }
        }
        at += others.len();
    })?;
    Ok(if elements == 0 { Change::Same } else { Change::Differs { elements, of, max_abs, max_ulp } })
}

fn distance(a: f32, b: f32) -> f64 {
    let distance = (f64::from(a) - f64::from(b)).abs();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

/// How many representable values lie between: 0 for `-0` and `+0`, 1 for neighbours.
fn ulps(a: f32, b: f32) -> u32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => return 0,
        (false, false) => {}
        _ => return u32::MAX,
    }
    // Bits of a float are sign and magnitude; mapped to a line they can be subtracted.
    let line = |x: f32| {
        let magnitude = i64::from(x.to_bits() & 0x7fff_ffff);
        if x.is_sign_negative() { -magnitude } else { magnitude }
    };
    u32::try_from((line(a) - line(b)).unsigned_abs()).expect("floats lie within 2^32 of one another")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ulps_count_the_floats_between() {
        assert_eq!(ulps(0.0, -0.0), 0);
        assert_eq!(ulps(1.0, 1.0f32.next_up()), 1);
        assert_eq!(ulps(f32::from_bits(1), -f32::from_bits(1)), 2);
        assert_eq!(ulps(f32::INFINITY, f32::NEG_INFINITY), 2 * 0x7f80_0000);
        assert_eq!(ulps(f32::NAN, 1.0), u32::MAX);
    }

    #[test]
    fn a_distance_to_what_is_no_number_is_infinite() {
        assert_eq!(distance(1.0, 3.5), 2.5);
        assert_eq!(distance(f32::NAN, 1.0), f64::INFINITY);
        assert_eq!(distance(f32::MAX, f32::MIN), 2.0 * f64::from(f32::MAX));
    }
}
