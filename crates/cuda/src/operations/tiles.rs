//! Tiles: which part of a matrix of results a block of threads has.
//!
//! A large tile reads less for each multiplication, a small one leaves less of a GPU idle. In f32 the bits are the same. This file does
//! not know what is multiplied.

use crate::kernels::Kernel;

/// A kernel and its tile.
pub(super) struct Tile {
    rows: usize,
    columns: usize,
    /// Instructions of a thread for a step along K, as `bench/instructions.py --turns` counts them.
    instructions: usize,
    pub(super) kernel: &'static Kernel,
}

impl Tile {
    pub(super) const fn new(
        [rows, columns]: [usize; 2],
        instructions: usize,
        kernel: &'static Kernel,
    ) -> Self {
        Self { rows, columns, instructions, kernel }
    }

    /// The one that there is.
    pub(super) const fn only(kernel: &'static Kernel) -> Self {
        Self::new([64, 64], 1, kernel)
    }

    /// Of how many of them a matrix consists.
    pub(super) fn of(&self, [rows, columns]: [usize; 2]) -> usize {
        rows.div_ceil(self.rows) * columns.div_ceil(self.columns)
    }
}

/// The one by which a matrix takes the least time that is computed so many times at once, on so many multiprocessors. Of equal ones the
/// first.
pub(super) fn quickest(
    multiprocessors: usize,
    tiles: &'static [Tile],
    matrix: [usize; 2],
    times: usize,
) -> &'static Tile {
    let time = |tile: &&Tile| (tile.of(matrix) * times).div_ceil(multiprocessors) * tile.instructions;
    tiles.iter().min_by_key(time).expect("there is a kernel")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::FILL;

    #[test]
    fn a_matrix_gets_the_tile_that_keeps_a_gpu_busy_with_the_fewest_instructions() {
        static TILES: [Tile; 4] = [
            Tile::new([64, 64], 10, &FILL),
            Tile::new([32, 64], 6, &FILL),
            Tile::new([32, 256], 20, &FILL),
            Tile::new([128, 128], 34, &FILL),
        ];
        for (matrix, times, tile) in [
            // Whose small tiles are computed at once, and the more of them the better.
            ([64, 64], 1, [32, 64]),
            ([1024, 256], 1, [32, 64]),
            ([1024, 512], 1, [64, 64]),
            // A second time for few large tiles is worse than several for small ones.
            ([1410, 1410], 1, [64, 64]),
            ([4096, 4096], 1, [128, 128]),
            // Few rows.
            ([32, 1 << 20], 1, [32, 256]),
            ([33, 1 << 20], 1, [64, 64]),
            ([97, 1 << 20], 1, [128, 128]),
            // Several times.
            ([128, 128], 128, [128, 128]),
            ([64, 128], 128, [64, 64]),
        ] {
            let chosen = quickest(128, &TILES, matrix, times);
            assert_eq!([chosen.rows, chosen.columns], tile, "{matrix:?} {times} times");
        }
    }
}
