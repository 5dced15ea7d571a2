//! Transposing: eight rows of eight at a time, in registers where the CPU can.
//!
//! This file does not know what is transposed.

use crate::cpu::isa::Have;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Isa;

/// `out[c * out_row + r] = x[r * x_row + c]` for `r` below `rows` and `c` below `columns`.
pub(in crate::cpu) fn transpose(
    isa: Have,
    x: &[f32],
    x_row: usize,
    rows: usize,
    columns: usize,
    out: &mut [f32],
    out_row: usize,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!((rows - 1) * x_row + columns <= x.len(), "{rows} rows {x_row} apart in {}", x.len());
    assert!((columns - 1) * out_row + rows <= out.len(), "{columns} rows {out_row} apart in {}", out.len());
    // What is left goes element by element.
    #[cfg(target_arch = "x86_64")]
    let (whole_rows, whole_columns) = blocks(isa, x, x_row, [rows, columns], out, out_row);
    #[cfg(not(target_arch = "x86_64"))]
    let (whole_rows, whole_columns) = {
        let _ = isa;
        (0, 0)
    };
    for c in 0..columns {
        let first = if c < whole_columns { whole_rows } else { 0 };
        for r in first..rows {
            out[c * out_row + r] = x[r * x_row + c];
        }
    }
}

/// Transposes all whole blocks of eight by eight, and says how many rows and columns they cover.
#[cfg(target_arch = "x86_64")]
fn blocks(
    isa: Have,
    x: &[f32],
    x_row: usize,
    [rows, columns]: [usize; 2],
    out: &mut [f32],
    out_row: usize,
) -> (usize, usize) {
    if isa.isa() == Isa::Scalar {
        return (0, 0);
    }
    let (rows, columns) = (rows / 8 * 8, columns / 8 * 8);
    for c in (0..columns).step_by(8) {
        for r in (0..rows).step_by(8) {
            // SAFETY: the caller asserted that the matrices lie inside both slices, and the CPU has AVX2 since the
            // instruction set is not scalar.
            unsafe {
                block(x.as_ptr().add(r * x_row + c), x_row, out.as_mut_ptr().add(c * out_row + r), out_row)
            };
        }
    }
    (rows, columns)
}

/// Transposes eight rows of eight.
///
/// SAFETY: both blocks can be accessed, and the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn block(x: *const f32, x_row: usize, out: *mut f32, out_row: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe {
        // Rows r and r + 4 in the halves of one register, so that only shuffles inside halves are left.
        let half = |r: usize, c: usize| -> __m256 {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(x.add(r * x_row + c)));
            _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(x.add((r + 4) * x_row + c)))
        };
        for c in [0, 4] {
            let (r0, r1, r2, r3) = (half(0, c), half(1, c), half(2, c), half(3, c));
            let (a, b) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
            let (d, e) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
            let out = out.add(c * out_row);
            _mm256_storeu_ps(out, _mm256_shuffle_ps::<0x44>(a, d));
            _mm256_storeu_ps(out.add(out_row), _mm256_shuffle_ps::<0xee>(a, d));
            _mm256_storeu_ps(out.add(2 * out_row), _mm256_shuffle_ps::<0x44>(b, e));
            _mm256_storeu_ps(out.add(3 * out_row), _mm256_shuffle_ps::<0xee>(b, e));
        }
    }
}
