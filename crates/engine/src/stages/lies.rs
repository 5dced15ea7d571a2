//! Where parameters and their gradients lie while a chain goes through its stages: all of them in one place, or somewhere that is asked stage
//! by stage.
//!
//! It does not know a stage.

use crate::device::Device;
use std::ops::Range;

/// Where the parameters of a chain's stages are.
pub(crate) trait Parameters<D: Device> {
    /// Those of one stage, until the next ones are asked for.
    fn part(&mut self, part: Range<usize>) -> D::Ref<'_>;
}

/// Those of a chain that are all there.
pub(crate) struct Whole<'a, D: Device>(pub(crate) D::Ref<'a>);

impl<D: Device> Parameters<D> for Whole<'_, D> {
    fn part(&mut self, part: Range<usize>) -> D::Ref<'_> {
        D::part(self.0, part)
    }
}

/// Where the gradients of a chain's stages go.
pub(crate) trait Gradients<D: Device>: Send {
    /// Those of one stage, to write.
    fn part(&mut self, part: Range<usize>) -> D::Mut<'_>;

    /// All from element `from` on are final.
    fn settle(&mut self, from: usize);

    /// The forward pass is done.
    fn backward_begins(&mut self) {}
}

/// Those of a chain that is waited for as a whole.
pub(crate) struct Inside<'a, D: Device>(pub(crate) D::Mut<'a>);

impl<D: Device> Gradients<D> for Inside<'_, D> {
    fn part(&mut self, part: Range<usize>) -> D::Mut<'_> {
        D::part_mut(&mut self.0, part)
    }

    fn settle(&mut self, _from: usize) {}
}
