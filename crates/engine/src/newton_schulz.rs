//! Orthogonal matrices, roughly: every singular value of a matrix is brought near 1 by a quintic Newton-Schulz iteration.
//!
//! Numbers lie as activations do: f32, where PyTorch rounds to bf16, or halves on a GPU that multiplies those. The products are the
//! device's, whose order is fixed: so the bits depend on the matrix and its shape alone. This file does not know parameters, gradients
//! or learning rates.
//!
//! *Source*: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, as `torch.optim.Muon` has it.

use crate::device::{Device, Product, Strides, Write};
use crate::error::{EngineError, within};

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

/// How much memory matrices are made orthogonal in, one at a time: two of the largest, and two squares of its shorter side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orthogonaliser {
    matrix: usize,
    square: usize,
}

/// That memory, the matrices first: f32, of which numbers take as much as activations do.
pub(crate) type MatrixRoom<'a, D> = [<D as Device>::Mut<'a>; Orthogonaliser::PARTS];

impl Orthogonaliser {
    /// Parts of the memory.
    pub const PARTS: usize = 4;

    /// That of matrices of these shapes.
    pub fn new(shapes: impl Iterator<Item = [usize; 2]>) -> Self {
        shapes.fold(Self { matrix: 0, square: 0 }, |Self { matrix, square }, [rows, columns]| Self {
            matrix: matrix.max(rows * columns),
            square: square.max(rows.min(columns).pow(2)),
        })
    }

    /// Elements of each part, where so many activations take so many.
    pub fn lengths(&self, activations: impl Fn(usize) -> usize) -> [usize; Self::PARTS] {
        let Self { matrix, square } = *self;
        let [numbers, square] = [matrix, square].map(activations);
        // The second one holds what is to be made orthogonal, in f32.
        [numbers, matrix, square, square]
    }

    /// Makes the matrix orthogonal that lies in the second part as f32; the result lies as activations do.
    ///
    /// *Order*: that of the device's products; everything else is element by element, without fused operations.
    pub fn orthogonal<'r, D: Device>(
        device: &D,
        how: &NewtonSchulz,
        [rows, columns]: [usize; 2],
        room: &'r mut MatrixRoom<'_, D>,
    ) -> D::Ref<'r> {
        let (elements, side) = (rows * columns, rows.min(columns));
        let [mut x, mut y, gram, square] = room.each_mut();
        let mut gram = device.activations_mut(gram, side * side);
        let mut square = device.activations_mut(square, side * side);
        let [a, b, c] = how.coefficients;
        // The largest singular value is then at most 1.
        let to = device.activations_mut(x, elements);
        device.unit(f64::from(how.epsilon), D::part(D::read(y), 0..elements), to);
        let (products, all) = (Products { rows, columns, side }, 0..side * side);
        for _ in 0..how.steps {
            let now = device.activations(D::read(x), elements);
            device.product(&products.gram(), now, now, D::part_mut(&mut gram, all.clone()));
            let (one, two) = (D::read(&gram), D::read(&gram));
            device.product(&products.square(), one, two, D::part_mut(&mut square, all.clone()));
            device.combine([b, c], D::read(&gram), D::part_mut(&mut square, all.clone()));
            device.combine([a, 0.0], now, device.activations_mut(y, elements));
            let (by, to) = (D::read(&square), device.activations_mut(y, elements));
            match products.is_wide() {
                true => device.product(&products.add_to_wide(), by, now, to),
                false => device.product(&products.add_to_tall(), now, by, to),
            }
            std::mem::swap(&mut x, &mut y);
        }
        device.activations(D::read(x), elements)
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
