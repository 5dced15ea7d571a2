//! Orthogonal matrices, roughly: every singular value of a matrix is brought near 1 by a quintic Newton-Schulz iteration.
//!
//! All of it is f32, where PyTorch rounds to bf16, and the products are the device's, whose order is fixed: so the bits depend on the
//! matrix and its shape alone. This file does not know parameters, gradients or learning rates.
//!
//! *Source*: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, as `torch.optim.Muon` has it.

use crate::device::{Product, Strides, Write};
use crate::error::{EngineError, within};
use crate::flat::Flat;
use crate::host_device::HostDevice;

/// How a matrix is made orthogonal: `X = aX + (bG + cG^2)X` with `G = XX^T`, some times over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewtonSchulz {
    /// How many times.
    pub steps: u32,
    /// `a`, `b` and `c`.
    pub coefficients: [f32; 3],
    /// The least norm that a matrix is divided by.
    pub epsilon: f32,
}

impl NewtonSchulz {
    /// The most steps, as PyTorch has it.
    pub const MOST_STEPS: u32 = 99;

    /// Whether every number makes sense.
    ///
    /// *Errors*: [`EngineError::Option`].
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        if !(1..=Self::MOST_STEPS).contains(&self.steps) {
            let reason = format!("must be from 1 to {}, got {}", Self::MOST_STEPS, self.steps);
            return Err(EngineError::Option { key: "optimizer.ns_steps", reason });
        }
        if !self.coefficients.iter().all(|coefficient| coefficient.is_finite()) {
            let reason = "must be three finite numbers".into();
            return Err(EngineError::Option { key: "optimizer.ns_coefficients", reason });
        }
        within("optimizer.ns_eps", self.epsilon, f32::MAX)
    }
}

impl Default for NewtonSchulz {
    /// PyTorch's.
    fn default() -> Self {
        Self { steps: 5, coefficients: [3.4445, -4.775, 2.0315], epsilon: 1e-7 }
    }
}

/// Memory in which matrices are made orthogonal, one at a time: two of the largest, and two squares of its shorter side.
#[derive(Debug)]
pub(crate) struct Orthogonaliser {
    matrices: [Flat; 2],
    squares: [Flat; 2],
}

impl Orthogonaliser {
    /// Memory for matrices of these shapes.
    pub fn new(shapes: impl Iterator<Item = [usize; 2]>) -> Self {
        let [matrix, square] = Self::lengths(shapes);
        Self { matrices: [matrix; 2].map(Flat::zeros), squares: [square; 2].map(Flat::zeros) }
    }

    /// Elements of the memory for matrices of these shapes.
    pub fn elements(shapes: impl Iterator<Item = [usize; 2]>) -> usize {
        2 * Self::lengths(shapes).into_iter().sum::<usize>()
    }

    fn lengths(shapes: impl Iterator<Item = [usize; 2]>) -> [usize; 2] {
        shapes.fold([0, 0], |[matrix, square], [rows, columns]| {
            [matrix.max(rows * columns), square.max(rows.min(columns).pow(2))]
        })
    }

    /// Where the matrix is written that is to be made orthogonal. *Panics* if there is no memory for so many elements.
    pub fn matrix(&mut self, elements: usize) -> &mut [f32] {
        &mut self.matrices[0][..elements]
    }

    /// Makes the matrix orthogonal that was written.
    ///
    /// *Order*: that of the device's products; everything else is element by element, without fused operations.
    pub fn orthogonal<D: HostDevice>(
        &mut self,
        device: &D,
        how: &NewtonSchulz,
        [rows, columns]: [usize; 2],
    ) -> &[f32] {
        let (elements, side) = (rows * columns, rows.min(columns));
        let [x, y] = self.matrices.each_mut().map(|matrix| &mut matrix[..elements]);
        let [gram, square] = self.squares.each_mut().map(|square| &mut square[..side * side]);
        let [a, b, c] = how.coefficients;
        // The largest singular value is then at most 1.
        let norm = device.sum_of_squares(x, 1.0).sqrt().max(f64::from(how.epsilon));
        let by = (1.0 / norm) as f32;
        x.iter_mut().for_each(|x| *x *= by);
        let (mut x, mut y) = (x, y);
        for _ in 0..how.steps {
            let products = Products { rows, columns, side };
            device.product(&products.gram(), x, x, gram);
            device.product(&products.square(), gram, gram, square);
            for (square, gram) in square.iter_mut().zip(&*gram) {
                *square = b * gram + c * *square;
            }
            y.iter_mut().zip(&*x).for_each(|(y, x)| *y = a * x);
            match products.is_wide() {
                true => device.product(&products.add_to_wide(), square, x, y),
                false => device.product(&products.add_to_tall(), x, square, y),
            }
            std::mem::swap(&mut x, &mut y);
        }
        x
    }
}

/// The products of a step. The Gram matrix is that of the shorter side; it is symmetric to the bit, since both halves add up the
/// same numbers in the same order.
struct Products {
    rows: usize,
    columns: usize,
    side: usize,
}

impl Products {
    fn is_wide(&self) -> bool {
        self.rows <= self.columns
    }

    /// `G = X X^T`, or `X^T X` of a matrix that has more rows than columns.
    fn gram(&self) -> Product {
        let Self { rows, columns, side } = *self;
        let (lying, turned) = (Strides::rows(columns), Strides::transposed(columns));
        let (k, a, b) = if self.is_wide() { (columns, lying, turned) } else { (rows, turned, lying) };
        Product { m: side, n: side, k, a, b, c_row: side, write: Write::Set }
    }

    /// `G G`.
    fn square(&self) -> Product {
        let side = self.side;
        let lying = Strides::rows(side);
        Product { m: side, n: side, k: side, a: lying, b: lying, c_row: side, write: Write::Set }
    }

    /// `Y += S X`.
    fn add_to_wide(&self) -> Product {
        let Self { rows, columns, side } = *self;
        let (a, b) = (Strides::rows(side), Strides::rows(columns));
        Product { m: rows, n: columns, k: side, a, b, c_row: columns, write: Write::Add }
    }

    /// `Y += X S`.
    fn add_to_tall(&self) -> Product {
        let Self { rows, columns, side } = *self;
        let (a, b) = (Strides::rows(columns), Strides::rows(side));
        Product { m: rows, n: columns, k: side, a, b, c_row: columns, write: Write::Add }
    }
}
