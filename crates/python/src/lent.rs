//! Whoever waits for the gradient of a pass, lent to what the pass calls: PyTorch's hooks say what of it is final.
//!
//! On a CPU the hooks run on the thread of the pass, which waits in PyTorch; for a GPU on a thread that PyTorch has for it.

use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// Who hears from which element on everything is final.
type Hears = dyn FnMut(usize) + Send;

/// A pass that goes on.
struct Pass {
    on: ThreadId,
    /// None while it is told.
    hears: Option<Lent>,
}

struct Lent(NonNull<Hears>);

// SAFETY: what it points to may be sent, and whoever has taken it out of its pass is the only one to use it.
unsafe impl Send for Lent {}

static PASSES: Mutex<Vec<Pass>> = Mutex::new(Vec::new());
/// A hook has given back whom it told.
static GIVEN_BACK: Condvar = Condvar::new();

fn with_passes<T>(look: impl FnOnce(&mut Vec<Pass>) -> T) -> T {
    look(&mut PASSES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Takes the loan back, however a pass ends.
struct Loan(ThreadId);

impl Drop for Loan {
    fn drop(&mut self) {
        let is_away =
            |passes: &mut Vec<Pass>| passes.iter().any(|pass| pass.on == self.0 && pass.hears.is_none());
        // A pass that failed may end while a hook of it goes on, on another thread: that is waited for.
        let passes = PASSES.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = GIVEN_BACK.wait_while(passes, is_away);
        passes.unwrap_or_else(PoisonError::into_inner).retain(|pass| pass.on != self.0);
    }
}

/// Runs `pass`, within which [`settle`] tells `hears`: on this thread, or on others while no pass goes on beside it.
pub fn lend<T>(hears: &mut (dyn FnMut(usize) + Send), pass: impl FnOnce() -> T) -> T {
    let lent: NonNull<dyn FnMut(usize) + Send + '_> = NonNull::from(hears);
    // SAFETY: only the lifetime is another one. Nobody finds the pointer after this function, in which it is borrowed: the loan below takes
    // it back, also when the pass panics.
    let lent: NonNull<Hears> = unsafe { std::mem::transmute(lent) };
    let on = thread::current().id();
    with_passes(|passes| passes.push(Pass { on, hears: Some(Lent(lent)) }));
    let _loan = Loan(on);
    pass()
}

/// Everything from this element on is final. Where no pass is known to be meant nothing happens: what is final is told behind it.
pub fn settle(from: usize) {
    let me = thread::current().id();
    let taken = with_passes(|passes| {
        let at = match passes.iter().position(|pass| pass.on == me) {
            Some(at) => at,
            None if passes.len() == 1 => 0,
            None => return None,
        };
        let Pass { on, hears } = &mut passes[at];
        hears.take().map(|lent| (*on, lent))
    });
    let Some((on, Lent(mut hears))) = taken else { return };
    let _taken = Taken { on, hears };
    // SAFETY: `lend` is on the stack of the pass's thread, which waits until it is given back, and nobody else has it meanwhile.
    let hears = unsafe { hears.as_mut() };
    hears(from);
}

/// Whom a hook tells: given back in the end, also where that panics, for the pass waits for it.
struct Taken {
    on: ThreadId,
    hears: NonNull<Hears>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        with_passes(|passes| {
            if let Some(pass) = passes.iter_mut().find(|pass| pass.on == self.on) {
                pass.hears = Some(Lent(self.hears));
            }
        });
        GIVEN_BACK.notify_all();
    }
}
