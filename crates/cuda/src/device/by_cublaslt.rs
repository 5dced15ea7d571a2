//! What a device has cuBLASLt multiply: where pins say so, on the device's stream, with the device's scratch.
//!
//! It does not know how a choice is made.

use super::CudaDevice;
use super::placed::{ALIGNED, Copies, Stretch, room_for_copies};
use super::products::{AskedProducts, Finished, key_of};
use crate::driver::DriverError;
use crate::libraries::Numbers;
use crate::libraries::cublaslt::{Matrices, ProductWorkspace, WORKSPACE};
use crate::libraries::product::{Finish, ProductKey};
use crate::operations::{hold, pitch_of, product_of_linear};
use crate::values::{Storage, Values, ValuesMut};
use dtrain_engine::device::{Activation, Gelu, LinearShape, Operands, Product};

impl CudaDevice {
    /// The products that a library might be asked for, since the device was made: with what a library chose for them another device
    /// can be made ([`CudaDevice::with_products`]). Of one that was made so there are none.
    #[must_use]
    pub fn products_asked_for(&self) -> Vec<ProductKey> {
        self.products.noted()
    }

    /// [`CudaDevice::done_by_library`] of a linear layer: `y = act(x w' + bias) + plus`.
    pub(super) fn linear_by_library(
        &self,
        shape: LinearShape,
        operands: Operands<Values<'_>>,
        activation: Activation,
        plus: Option<Values<'_>>,
        y: &mut ValuesMut<'_>,
    ) -> bool {
        let Operands { x, w, bias } = operands;
        let finish = match (bias, activation, plus) {
            (None, Activation::None, None) => Finish::None,
            (None, Activation::None, Some(_)) => Finish::Plus,
            (Some(_), Activation::None, None) => Finish::Bias,
            (Some(_), Activation::Relu, None) => Finish::BiasRelu,
            (Some(_), Activation::None, Some(_)) => Finish::PlusBias,
            // What no library adds in our order.
            (None, Activation::Relu, _) | (_, Activation::Relu, Some(_)) => return false,
        };
        let outputs = shape.outputs;
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "the bias of {outputs} outputs");
        assert!(plus.is_none_or(|plus| plus.len() == y.len()), "what is added lies as the result does");
        let product = product_of_linear(shape, pitch_of("y", y.len(), shape.rows, outputs));
        self.done_by_library(&product, [x, w], y, Finished { finish, bias, plus, kept: None })
    }

    /// The same of one whose output is `y = gelu(z)`, which the library computes by the hyperbolic tangent, in halves.
    ///
    /// *Panics* on lengths as [`crate::operations::product`] does.
    pub(super) fn linear_gelu_by_library(
        &self,
        shape: LinearShape,
        operands: Operands<Values<'_>>,
        form: Gelu,
        z: &mut ValuesMut<'_>,
        y: &mut ValuesMut<'_>,
    ) -> bool {
        let Operands { x, w, bias } = operands;
        if form != Gelu::Tanh || bias.is_none() || self.precision.half().is_none() {
            return false;
        }
        let outputs = shape.outputs;
        assert!(bias.is_some_and(|bias| bias.len() == outputs), "the bias of {outputs} outputs");
        assert_eq!(z.len(), y.len(), "what GELU is of lies as its result does");
        let product = product_of_linear(shape, pitch_of("y", y.len(), shape.rows, outputs));
        let with = Finished { finish: Finish::BiasGelu, bias, plus: None, kept: Some(z.read()) };
        self.done_by_library(&product, [x, w], y, with)
    }

    /// Whether a library has done a product: put it on the stream.
    ///
    /// *Panics* on lengths as [`crate::operations::product`] does.
    pub(super) fn done_by_library(
        &self,
        shape: &Product,
        [a, b]: [Values<'_>; 2],
        c: &mut ValuesMut<'_>,
        with: Finished<'_>,
    ) -> bool {
        let c = c.read();
        let Some(key) =
            Numbers::of(self.precision()).and_then(|reads| key_of(reads, shape, c.storage(), with.finish))
        else {
            return false;
        };
        let nothing = (0, 0);
        let read = [Some(a), Some(b), with.plus, with.bias]
            .map(|operand| operand.map_or(Some(nothing), |values| stretch(values, key.numbers.storage())));
        // Where it lies follows from the model.
        let kept = with.kept.and_then(|kept| stretch(kept, c.storage()));
        if kept.is_some_and(|(at, _)| !at.is_multiple_of(ALIGNED)) {
            return false;
        }
        // A parameter without a copy in halves.
        let [Some(a_at), Some(b_at), Some(plus), Some(bias)] = read else { return false };
        let mut asked = self.products.asked();
        let planned = match &mut *asked {
            AskedProducts::Noted(_, least) if key.operations() < *least => return false,
            AskedProducts::Noted(keys, _) => {
                keys.insert(key);
                // On paper the workspace that a library would have is counted.
                let on_paper = self.gpu().context().is_on_paper();
                let room =
                    if on_paper { self.workspace().room_for_library(WORKSPACE).map(|_| ()) } else { Ok(()) };
                room.unwrap_or_else(|error| self.gpu().context().fail(error));
                return false;
            }
            AskedProducts::Planned(planned) => match planned.get_mut(&key) {
                None => return false,
                Some(planned) => planned,
            },
        };
        hold(shape, [a.len(), b.len(), c.len()]);
        let Some(written) = stretch(c, c.storage()) else { return false };
        let kept = kept.map_or(0, |(at, _)| at);
        let read = [a_at, b_at, plus, bias];
        let room = WORKSPACE + room_for_copies(&read) + room_for_copies(&[written]);
        let given = self.workspace().room_for_library(room).and_then(|address| {
            let mut copies = Copies { stream: &self.stream, next: address + WORKSPACE };
            // SAFETY: they lie there by the promise of their slices, and the scratch was asked for with room for the copies.
            let ([a, b, plus, bias], c) = unsafe {
                let [a, b, plus, bias] = read.map(|operand| copies.of(operand));
                ([a?, b?, plus?, bias?], copies.of(written)?)
            };
            let operands = Matrices { a, b, c, plus, bias, kept };
            let workspace = ProductWorkspace { address, bytes: WORKSPACE };
            self.stream.give_foreign("cuBLASLt", |stream| {
                // SAFETY: the matrices lie there by the promise of their slices, which compared their lengths with the shape; the
                // workspace is this device's, for what is on its one stream.
                unsafe { planned.run(operands, workspace, stream) }.map_err(DriverError::from)
            })?;
            // SAFETY: as above.
            unsafe { copies.back(c, written) }
        });
        given.unwrap_or_else(|error| self.gpu().context().fail(error));
        true
    }
}

/// Where numbers lie as they are multiplied; nowhere if they are not there so.
fn stretch(values: Values<'_>, storage: Storage) -> Option<Stretch> {
    let bytes = (storage.bytes() * values.len()) as u64;
    match storage {
        Storage::F32 => Some((values.floats().address(), bytes)),
        Storage::Half(_) => values.halves().map(|halves| (halves.address(), bytes)),
    }
}
