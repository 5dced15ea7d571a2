//! Products that a library does: which these are is data ([`ProductPins`]), and everything else is done by this crate's kernels.
//!
//! A device may also note which products it would ask a library for, so that somebody can choose before a run begins. It does not
//! know how a choice is made.

use super::CudaDevice;
use crate::driver::DriverError;
use crate::libraries::cublaslt::{
    CublasLt, Finish, Matrices, PinnedAlgorithm, PlannedProduct, ProductKey, ProductWorkspace, WORKSPACE,
};
use crate::libraries::pins::ProductPins;
use crate::libraries::{LibraryError, Numbers};
use crate::memory::Slice;
use crate::operations::{Half, HalfResult, pitch_of, product_of_linear};
use crate::values::Values;
use dtrain_engine::device::{Activation, LinearShape, Operands, Product};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A product with fewer operations is not worth a call of a library, which takes it out of a graph: a few microseconds.
const LEAST: u64 = 1 << 30;
/// Addresses and rows of operands begin on multiples of it, or the product is not one for a library. *Units*: bytes.
const ALIGNED: u32 = 16;
/// Bytes of a half.
const HALF: u64 = 2;

/// What a library is asked for.
#[derive(Debug)]
enum Asked {
    /// Nothing: shapes that it might be asked for are noted, if they have so many operations.
    Noted(BTreeSet<ProductKey>, u64),
    /// What these plans are for.
    Planned(BTreeMap<ProductKey, PlannedProduct>),
}

/// The products of a device that are not its own kernels'.
#[derive(Debug)]
pub(super) struct Products {
    asked: Mutex<Asked>,
}

/// What is added to a product, and its activation.
#[derive(Clone, Copy, Default)]
pub(super) struct Finished<'a> {
    pub finish: Finish,
    pub bias: Option<Slice<'a, u16>>,
    pub plus: Option<Slice<'a, u16>>,
}

impl Default for Products {
    fn default() -> Self {
        Self::noting(LEAST)
    }
}

impl Products {
    /// None, and those of so many operations are noted.
    pub fn noting(least: u64) -> Self {
        Self { asked: Mutex::new(Asked::Noted(BTreeSet::new(), least)) }
    }

    /// Those that were pinned, by this library.
    ///
    /// *Errors*: an algorithm that the library does not take.
    pub fn pinned(pins: &ProductPins, library: &Arc<CublasLt>) -> Result<Self, LibraryError> {
        let plan = |pin: &PinnedAlgorithm| Ok((pin.key, library.accept(pin)?));
        let planned: Result<_, LibraryError> = pins.algorithms().map(plan).collect();
        Ok(Self { asked: Mutex::new(Asked::Planned(planned?)) })
    }

    /// None at all.
    pub fn own() -> Self {
        Self { asked: Mutex::new(Asked::Planned(BTreeMap::new())) }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        // Whoever panicked over a failed device leaves nothing half done here.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shapes that were noted.
    pub fn noted(&self) -> Vec<ProductKey> {
        match &*self.asked() {
            Asked::Noted(keys, _) => keys.iter().copied().collect(),
            Asked::Planned(_) => Vec::new(),
        }
    }
}

/// The key of a product of halves, if a library may be asked for it.
fn key_of(
    half: Half,
    shape: &Product,
    [a, b]: [Slice<'_, u16>; 2],
    c: &HalfResult<'_>,
    with: &Finished<'_>,
) -> Option<ProductKey> {
    let (numbers, into_floats) = match (half, c) {
        (Half::Bf16, HalfResult::Half(_)) => (Numbers::Bf16, false),
        (Half::Bf16, HalfResult::F32(_)) => (Numbers::Bf16ToF32, true),
        (Half::F16, HalfResult::Half(_)) => (Numbers::F16, false),
        (Half::F16, HalfResult::F32(_)) => (Numbers::F16ToF32, true),
    };
    let key = ProductKey::of(shape, numbers, with.finish, ALIGNED).ok()?;
    let layouts = key.layouts;
    let each = u64::from(ALIGNED) / HALF;
    let pitches = [layouts.left.pitch, layouts.right.pitch].iter().all(|pitch| pitch.is_multiple_of(each))
        && layouts.out.pitch.is_multiple_of(if into_floats { each / 2 } else { each });
    let places = [Some(a), Some(b), with.bias, with.plus].into_iter().flatten().map(|x| x.address());
    let aligned = places.chain([c.address()]).all(|at| at.is_multiple_of(u64::from(ALIGNED)));
    (pitches && aligned).then_some(key)
}

impl CudaDevice {
    /// The products that a library might be asked for, since the device was made: with what a library chose for them another device
    /// can be made ([`CudaDevice::with_products`]). Of one that was made so there are none.
    #[must_use]
    pub fn products_asked_for(&self) -> Vec<ProductKey> {
        self.products.noted()
    }

    /// The same for a linear layer: `y = act(x w' + bias) + plus`.
    pub(super) fn linear_by_library(
        &self,
        half: Half,
        shape: LinearShape,
        operands: Operands<Values<'_>>,
        activation: Activation,
        plus: Option<Slice<'_, u16>>,
        y: &HalfResult<'_>,
    ) -> bool {
        let (Some(x), Some(w)) = (operands.x.halves(), operands.w.halves()) else { return false };
        let bias = operands.bias.map(Values::halves);
        let (finish, bias) = match (bias, activation, plus) {
            (None, Activation::None, None) => (Finish::None, None),
            (None, Activation::None, Some(_)) => (Finish::Plus, None),
            (Some(bias @ Some(_)), Activation::None, None) => (Finish::Bias, bias),
            (Some(bias @ Some(_)), Activation::Relu, None) => (Finish::BiasRelu, bias),
            (Some(bias @ Some(_)), Activation::None, Some(_)) => (Finish::PlusBias, bias),
            // A bias without a copy in halves; what no library adds in our order.
            (Some(None), ..) | (None, Activation::Relu, _) | (_, Activation::Relu, Some(_)) => return false,
        };
        let outputs = shape.outputs;
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "the bias of {outputs} outputs");
        assert!(plus.is_none_or(|plus| plus.len() == y.len()), "what is added lies as the result does");
        let product = product_of_linear(shape, pitch_of("y", y.len(), shape.rows, outputs));
        self.done_by_library(half, &product, [x, w], y, Finished { finish, bias, plus })
    }

    /// Whether a library has done a product of halves: put it on the stream.
    ///
    /// *Panics* on lengths as [`crate::operations::product_half`] does.
    pub(super) fn done_by_library(
        &self,
        half: Half,
        shape: &Product,
        [a, b]: [Slice<'_, u16>; 2],
        c: &HalfResult<'_>,
        with: Finished<'_>,
    ) -> bool {
        let Some(key) = key_of(half, shape, [a, b], c, &with) else { return false };
        let mut asked = self.products.asked();
        let planned = match &mut *asked {
            Asked::Noted(_, least) if key.operations() < *least => return false,
            Asked::Noted(keys, _) => {
                keys.insert(key);
                // On paper the workspace that a library would have is counted.
                let on_paper = self.gpu().context().is_on_paper();
                let room =
                    if on_paper { self.workspace().room_for_library(WORKSPACE).map(|_| ()) } else { Ok(()) };
                room.unwrap_or_else(|error| self.gpu().context().fail(error));
                return false;
            }
            Asked::Planned(planned) => match planned.get_mut(&key) {
                None => return false,
                Some(planned) => planned,
            },
        };
        c.holds(shape, [a, b]);
        let given = self.workspace().room_for_library(WORKSPACE).and_then(|address| {
            let at = |x: Option<Slice<'_, u16>>| x.map_or(0, |x| x.address());
            let (a, b, c) = (a.address(), b.address(), c.address());
            let operands = Matrices { a, b, c, plus: at(with.plus), bias: at(with.bias) };
            let workspace = ProductWorkspace { address, bytes: WORKSPACE };
            self.stream.give_foreign("cuBLASLt", |stream| {
                // SAFETY: the matrices lie there by the promise of their slices, which compared their lengths with the shape; the
                // workspace is this device's, for what is on its one stream.
                unsafe { planned.run(operands, workspace, stream) }.map_err(DriverError::from)
            })
        });
        given.unwrap_or_else(|error| self.gpu().context().fail(error));
        true
    }
}
