//! Where gradients between stages lie in a backward pass: they go back and forth between two buffers.
//!
//! It does not know a stage.

use crate::device::Device;

/// Where a gradient lies during the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// In the chain's own `dy`.
    Outer,
    /// In the first buffer.
    Ping,
    /// In the second buffer.
    Pong,
    /// In the chain's own `dx`.
    Goal,
}

impl Spot {
    /// The buffer to write next.
    pub fn other(self) -> Self {
        if self == Self::Ping { Self::Pong } else { Self::Ping }
    }
}

/// The buffers that gradients go through in a backward pass, and the one that holds the newest.
pub(super) struct Between<'a, 'd, D: Device> {
    pub device: &'d D,
    pub outer: D::Mut<'a>,
    pub ping: D::Mut<'a>,
    pub pong: D::Mut<'a>,
    pub goal: Option<D::Mut<'a>>,
    pub at: Spot,
}

/// A gradient in a buffer of `len` activations. What the chain was given holds activations; its own buffers are memory for some.
fn lent<'b, D: Device>(device: &D, memory: &'b mut D::Mut<'_>, spot: Spot, len: usize) -> D::Mut<'b> {
    match spot {
        // All of it: the rows of a model's outputs may lie apart.
        Spot::Outer => {
            let all = D::len_mut(memory);
            D::part_mut(memory, 0..all)
        }
        Spot::Goal => D::part_mut(memory, 0..len),
        Spot::Ping | Spot::Pong => device.activations_mut(memory, len),
    }
}

/// The gradient of a stage's output, where that of its input goes, and that of the chain's outputs where it is another one.
pub(super) type Lent<'a, D> =
    (<D as Device>::Mut<'a>, Option<<D as Device>::Mut<'a>>, Option<<D as Device>::Ref<'a>>);

impl<D: Device> Between<'_, '_, D> {
    /// Lends a stage its gradients: nowhere to write for a stage that works in place, and for the first if nobody wants it.
    pub fn lend(&mut self, to: Option<Spot>, [x_len, y_len]: [usize; 2]) -> Lent<'_, D> {
        let Self { device, outer, ping, pong, goal, at } = self;
        let (goal, spot) = (goal.as_mut(), *at);
        let (from, into, outer) = match (spot, to) {
            (Spot::Outer, None) => (outer, None, None),
            (Spot::Outer, Some(Spot::Ping)) => (outer, Some(ping), None),
            (Spot::Outer, Some(_)) => (outer, goal, None),
            (Spot::Ping, None) => (ping, None, Some(outer)),
            (Spot::Ping, Some(Spot::Pong)) => (ping, Some(pong), Some(outer)),
            (Spot::Ping, Some(_)) => (ping, goal, Some(outer)),
            (Spot::Pong, None) => (pong, None, Some(outer)),
            (Spot::Pong, Some(Spot::Ping)) => (pong, Some(ping), Some(outer)),
            (Spot::Pong, Some(_)) => (pong, goal, Some(outer)),
            (Spot::Goal, _) => {
                (goal.expect("a gradient lies in the `dx` that was wanted"), None, Some(outer))
            }
        };
        let to = to.unwrap_or(spot);
        (
            lent::<D>(device, from, spot, y_len),
            into.map(|into| lent::<D>(device, into, to, x_len)),
            outer.map(|outer| D::read(outer)),
        )
    }
}
