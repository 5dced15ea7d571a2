//! The gradient of the pass that this thread is in, lent to what the pass calls: PyTorch's hooks say what of it is final.

use dtrain::engine::Gradient;
use std::cell::Cell;
use std::ptr::NonNull;

thread_local! {
    static LENT: Cell<Option<NonNull<dyn Gradient>>> = const { Cell::new(None) };
}

/// Takes the loan back, however a pass ends.
struct Loan;

impl Drop for Loan {
    fn drop(&mut self) {
        LENT.set(None);
    }
}

/// Runs `pass`, within which [`settle`] on this thread settles this gradient.
pub fn lend<T>(gradient: &mut dyn Gradient, pass: impl FnOnce() -> T) -> T {
    let lent: NonNull<dyn Gradient + '_> = NonNull::from(gradient);
    // SAFETY: only the lifetime is another one. Nobody finds the pointer after this function, in which the gradient is borrowed:
    // it is this thread's own, and the loan below takes it back, also when the pass panics.
    let lent: NonNull<dyn Gradient> = unsafe { std::mem::transmute(lent) };
    LENT.set(Some(lent));
    let _loan = Loan;
    pass()
}

/// Everything from this element on is final. Where no pass is on this thread, as where PyTorch computes a GPU's gradients on one of its
/// own, nothing happens: what is final is told behind the pass.
pub fn settle(from: usize) {
    // It is away while it is used, so that nobody has it twice.
    let Some(mut lent) = LENT.take() else { return };
    // SAFETY: `lend` is on this thread's stack and does not touch the gradient while the pass goes on; see there.
    unsafe { lent.as_mut() }.settle(from);
    LENT.set(Some(lent));
}
