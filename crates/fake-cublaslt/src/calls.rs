//! The C functions themselves, by the names and types of `cublasLt.h`.
//!
//! Each counts itself, looks its arguments over and hands on to the module that does the work. Handles are numbers here, and enums
//! are: a caller may give any.
#![allow(non_snake_case, clippy::too_many_arguments)]

use crate::algorithm::{Algorithm, NUMBER, Words};
use crate::knobs::{CALLS, knobs};
use crate::objects::{self, COLUMNS, COMPUTE_TYPE, Kind, PITCH, ROWS, SCALE_TYPE, TYPE};
use crate::problem::{Activation, Problem};
use crate::product::{Product, order};
use crate::queue;
use crate::status::{Answer, EXECUTION_FAILED, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, Status, demand, words};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// What a workspace is aligned to.
const WORKSPACE_ALIGNMENT: usize = 16;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct Found {
    algorithm: Words,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

impl Found {
    fn new(algorithm: &Algorithm, workspace: usize) -> Self {
        Self { algorithm: algorithm.words(), workspace, state: SUCCESS, waves: 1.0, reserved: [0; 4] }
    }
}

/// Writes an answer to where a caller wants it.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn answer<T>(to: *mut T, value: T) -> Answer {
    demand(!to.is_null(), INVALID_VALUE)?;
    // SAFETY: it is not null, and the caller vouches for the rest.
    unsafe { to.write(value) };
    Ok(())
}

/// Hands something out.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn hand_out(to: *mut usize, kind: Kind, values: &[(c_uint, u64)]) -> Answer {
    demand(!to.is_null(), INVALID_VALUE)?;
    let fresh = values.iter().fold(kind.fresh(), |fresh, (attribute, value)| fresh.with(*attribute, *value));
    // SAFETY: the caller's promise.
    unsafe { answer(to, objects::add(kind, fresh)) }
}

/// An algorithm of a caller.
///
/// # Safety
/// `at` is null or has 64 bytes.
unsafe fn algorithm(at: *const Words) -> Result<Algorithm, Status> {
    demand(!at.is_null(), INVALID_VALUE)?;
    // SAFETY: the caller's promise; nothing is said of how they are aligned.
    Algorithm::read(&unsafe { at.read_unaligned() })
}

/// What descriptors describe. One of C that is missing is that of D.
fn problem(library: usize, product: usize, layouts: [usize; 4]) -> Result<Problem, Status> {
    objects::look(Kind::Library, library)?;
    let product = objects::look(Kind::Product, product)?;
    let [a, b, c, d] = layouts;
    let [a, b, c, d] =
        [a, b, if c == 0 { d } else { c }, d].map(|layout| objects::look(Kind::Layout, layout));
    Problem::of(&product, [&a?, &b?, &c?, &d?])
}

macro_rules! library {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> Status {
                let _which = CALLS.count(stringify!($name));
                // SAFETY: pointers are null or what cublasLt.h says; nothing is kept of them behind the call but what a stream needs.
                #[allow(unused_unsafe)]
                let work = || -> Answer { unsafe { $body } };
                work().err().unwrap_or(SUCCESS)
            }
        )*
    };
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    knobs().version
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusName(status: Status) -> *const c_char {
    words(status).0.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusString(status: Status) -> *const c_char {
    words(status).1.as_ptr()
}

library! {
    cublasLtCreate(to: *mut usize) {
        hand_out(to, Kind::Library, &[])
    }

    cublasLtDestroy(handle: usize) {
        objects::remove(Kind::Library, handle)
    }

    cublasLtMatmulDescCreate(to: *mut usize, compute: c_uint, scale: c_uint) {
        hand_out(to, Kind::Product, &[(COMPUTE_TYPE, compute.into()), (SCALE_TYPE, scale.into())])
    }

    cublasLtMatmulDescDestroy(handle: usize) {
        objects::remove(Kind::Product, handle)
    }

    cublasLtMatmulDescSetAttribute(handle: usize, attribute: c_uint, from: *const c_void, bytes: usize) {
        objects::of(Kind::Product, handle, |it| it.set(attribute, from, bytes))?
    }

    cublasLtMatmulDescGetAttribute(handle: usize, attribute: c_uint, to: *mut c_void, room: usize, written: *mut usize) {
        objects::look(Kind::Product, handle)?.tell(attribute, to, room, written)
    }

    cublasLtMatrixLayoutCreate(to: *mut usize, numbers: c_uint, rows: u64, columns: u64, pitch: i64) {
        let values = [(TYPE, numbers.into()), (ROWS, rows), (COLUMNS, columns), (PITCH, pitch as u64)];
        hand_out(to, Kind::Layout, &values)
    }

    cublasLtMatrixLayoutDestroy(handle: usize) {
        objects::remove(Kind::Layout, handle)
    }

    cublasLtMatrixLayoutSetAttribute(handle: usize, attribute: c_uint, from: *const c_void, bytes: usize) {
        objects::of(Kind::Layout, handle, |it| it.set(attribute, from, bytes))?
    }

    cublasLtMatrixLayoutGetAttribute(handle: usize, attribute: c_uint, to: *mut c_void, room: usize, written: *mut usize) {
        objects::look(Kind::Layout, handle)?.tell(attribute, to, room, written)
    }

    cublasLtMatmulPreferenceCreate(to: *mut usize) {
        hand_out(to, Kind::Preference, &[])
    }

    cublasLtMatmulPreferenceDestroy(handle: usize) {
        objects::remove(Kind::Preference, handle)
    }

    cublasLtMatmulPreferenceSetAttribute(handle: usize, attribute: c_uint, from: *const c_void, bytes: usize) {
        objects::of(Kind::Preference, handle, |it| it.set(attribute, from, bytes))?
    }

    cublasLtMatmulPreferenceGetAttribute(handle: usize, attribute: c_uint, to: *mut c_void, room: usize, written: *mut usize) {
        objects::look(Kind::Preference, handle)?.tell(attribute, to, room, written)
    }

    cublasLtMatmulAlgoGetHeuristic(
        library: usize, product: usize, a: usize, b: usize, c: usize, d: usize, preference: usize, most: c_int,
        to: *mut Found, found: *mut c_int
    ) {
        demand(most > 0 && !to.is_null(), INVALID_VALUE)?;
        answer(found, 0)?;
        let problem = problem(library, product, [a, b, c, d])?;
        let preference = objects::look(Kind::Preference, preference)?;
        let mut offered = Algorithm::offered(&problem, &preference)?;
        offered.truncate(if knobs().none { 0 } else { most as usize });
        for (place, algorithm) in offered.iter().enumerate() {
            to.add(place).write(Found::new(algorithm, algorithm.judged(&problem)?));
        }
        answer(found, offered.len() as c_int)?;
        demand(!offered.is_empty(), NOT_SUPPORTED)
    }

    cublasLtMatmulAlgoCheck(
        library: usize, product: usize, a: usize, b: usize, c: usize, d: usize, chosen: *const Words, to: *mut Found
    ) {
        let problem = problem(library, product, [a, b, c, d])?;
        let algorithm = algorithm(chosen)?;
        answer(to, Found::new(&algorithm, algorithm.judged(&problem)?))
    }

    cublasLtMatmulAlgoConfigGetAttribute(
        chosen: *const Words, attribute: c_uint, to: *mut c_void, room: usize, written: *mut usize
    ) {
        algorithm(chosen)?.configuration.tell(attribute, to, room, written)
    }

    cublasLtMatmulAlgoConfigSetAttribute(chosen: *mut Words, attribute: c_uint, from: *const c_void, bytes: usize) {
        let mut algorithm = algorithm(chosen)?;
        demand(attribute != NUMBER, INVALID_VALUE)?;
        algorithm.configuration.set(attribute, from, bytes)?;
        chosen.write_unaligned(algorithm.words());
        Ok(())
    }

    cublasLtMatmulAlgoCapGetAttribute(
        chosen: *const Words, attribute: c_uint, to: *mut c_void, room: usize, written: *mut usize
    ) {
        algorithm(chosen)?.tell_ability(attribute, to, room, written)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmul(
    library: usize,
    product: usize,
    alpha: *const f32,
    at_a: usize,
    a: usize,
    at_b: usize,
    b: usize,
    beta: *const f32,
    at_c: usize,
    c: usize,
    at_d: usize,
    d: usize,
    chosen: *const Words,
    workspace: usize,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> Status {
    let which = CALLS.count("cublasLtMatmul");
    let made = || {
        let problem = problem(library, product, [a, b, c, d])?;
        // SAFETY: null, or an algorithm of the caller.
        let algorithm = unsafe { algorithm(chosen) }?;
        // SAFETY: null, or factors of the type that the problem was judged to have.
        let (alpha, beta) = unsafe { (alpha.as_ref(), beta.as_ref()) };
        let (alpha, beta) = (*alpha.ok_or(INVALID_VALUE)?, *beta.ok_or(INVALID_VALUE)?);
        let room = algorithm.judged(&problem)?;
        let fits = workspace_bytes >= room && (room == 0 || workspace != 0);
        // One that is given has to be aligned, needed or not.
        let aligned = workspace.is_multiple_of(WORKSPACE_ALIGNMENT);
        let there = at_a != 0
            && at_b != 0
            && at_d != 0
            && (beta == 0.0 || at_c != 0)
            && problem.bias != Some(0)
            && !matches!(problem.activation, Activation::Gelu { at: 0, .. });
        // C in the place of D is D.
        let one = at_c != at_d || problem.c.pitch == problem.d.pitch;
        demand(fits && aligned && there && one, INVALID_VALUE)?;
        let addresses = [at_a, at_b, at_c, at_d];
        let bias_is = problem.bias.unwrap_or_default().is_multiple_of(problem.d.numbers.bytes());
        demand(algorithm.takes(addresses) && bias_is, NOT_SUPPORTED)?;
        demand(knobs().fail_at != Some(which), EXECUTION_FAILED)?;
        let turn = knobs().unsteady.then_some(which as usize);
        let order = order(problem.inner, algorithm.cuts(), algorithm.runs(), turn);
        Ok(Product { problem, addresses, alpha, beta, workspace, order })
    };
    // SAFETY: the caller's promise of matrices, bias, workspace and stream.
    made().and_then(|product| unsafe { queue::put(stream, product) }).err().unwrap_or(SUCCESS)
}
