//! Sums of which every node is rounded to bf16: made-up gradients, and the plain sums that collectives are held against.
//!
//! Its rounding is not the one that is tested: it goes by distances.

use crate::plain::{gradient, gradients};

/// The nearest bf16 of a finite number, ties to even, by distances in f64.
pub fn rounded(x: f32) -> f32 {
    let below = f32::from_bits(x.to_bits() & 0xffff_0000);
    let above = f32::from_bits((x.to_bits() & 0xffff_0000) + 0x1_0000);
    let [below_by, above_by] = [below, above].map(|it| (f64::from(it) - f64::from(x)).abs());
    let even = if below.to_bits() >> 16 & 1 == 0 { below } else { above };
    match below_by.total_cmp(&above_by) {
        std::cmp::Ordering::Less => below,
        std::cmp::Ordering::Equal => even,
        std::cmp::Ordering::Greater => above,
    }
}

/// Element `i` of the tree over `lo..hi` as its definition says, every node rounded but the one over `spared`.
pub fn node(lo: u32, hi: u32, i: usize, spared: Option<(u32, u32)>) -> f32 {
    node_over(lo, hi, spared, &|m| gradient(m, i))
}

fn node_over(lo: u32, hi: u32, spared: Option<(u32, u32)>, leaf: &impl Fn(u32) -> f32) -> f32 {
    let value = if hi - lo == 1 {
        leaf(lo)
    } else {
        let mid = lo + (hi - lo).next_power_of_two() / 2;
        node_over(lo, mid, spared, leaf) + node_over(mid, hi, spared, leaf)
    };
    if spared == Some((lo, hi)) { value } else { rounded(value) }
}

/// Bits of a whole step's gradient.
pub fn reference(len: usize, count: u32) -> Vec<u32> {
    let leaves: Vec<_> = (0..count).map(|m| gradients(m, len)).collect();
    (0..len).map(|i| node_over(0, count, None, &|m| leaves[m as usize][i]).to_bits()).collect()
}
