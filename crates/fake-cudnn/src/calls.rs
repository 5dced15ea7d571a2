//! The C functions themselves, by the names and types of `cudnn.h`.
//!
//! Each counts itself, looks its arguments over and hands on to the module that does the work. Handles are numbers here, and enums
//! are: a caller may give any.
#![allow(non_snake_case, clippy::too_many_arguments)]

use crate::algorithm::{self, Algorithm};
use crate::convolution::{Convolution, Epilogue};
use crate::engines;
use crate::knobs::{CALLS, CONVOLUTIONS, knobs};
use crate::numbers::numbers;
use crate::objects::{self, Activation, How, IDENTITY, Object, RELU, Shape};
use crate::part::{Part, kind};
use crate::parts;
use crate::problem::{self, Pass, Problem};
use crate::program::Run;
use crate::queue;
use crate::status::{Answer, BAD_PARAM, EXECUTION_FAILED, NOT_SUPPORTED, SUCCESS, Status, demand, name};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CUDNN_DIM_MAX`.
const MOST_AXES: c_int = 8;
/// The number of the forward algorithm that an activation of nothing is for: `IMPLICIT_PRECOMP_GEMM`.
const PRECOMPUTED: c_uint = 1;

/// `cudnnConvolutionFwdAlgoPerf_t` and the other two.
#[repr(C)]
struct Offer {
    algorithm: c_uint,
    status: Status,
    time: f32,
    memory: usize,
    determinism: c_uint,
    math: c_uint,
    reserved: [c_int; 3],
}

/// Writes an answer to where a caller wants it.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn answer<T>(to: *mut T, value: T) -> Answer {
    demand(!to.is_null(), BAD_PARAM)?;
    // SAFETY: it is not null, and the caller vouches for the rest.
    unsafe { to.write(value) };
    Ok(())
}

/// Hands something out.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn hand_out(to: *mut usize, object: Object) -> Answer {
    demand(!to.is_null(), BAD_PARAM)?;
    // SAFETY: the caller's promise.
    unsafe { answer(to, objects::add(object)) }
}

/// A list of numbers, none of them less than `least`.
///
/// # Safety
/// `from` is null or has so many numbers.
unsafe fn list(from: *const c_int, count: c_int, least: c_int) -> Result<Vec<usize>, Status> {
    demand(count <= MOST_AXES, NOT_SUPPORTED)?;
    demand(count > 0 && !from.is_null(), BAD_PARAM)?;
    // SAFETY: the caller's promise.
    let all = unsafe { std::slice::from_raw_parts(from, count as usize) };
    demand(all.iter().all(|n| *n >= least), BAD_PARAM)?;
    Ok(all.iter().map(|n| *n as usize).collect())
}

fn tensor(handle: usize) -> Result<Shape, Status> {
    objects::of(handle, |it| if let Object::Tensor(shape) = it { shape.clone() } else { None })
}

fn filter(handle: usize) -> Result<Shape, Status> {
    objects::of(handle, |it| if let Object::Filter(shape) = it { shape.clone() } else { None })
}

fn convolution(handle: usize) -> Result<(How, c_uint), Status> {
    objects::of(handle, |it| match it {
        Object::Convolution { how: Some(how), math } => Some((how.clone(), *math)),
        _ => None,
    })
}

fn stream_of(handle: usize) -> Result<usize, Status> {
    objects::of(handle, |it| if let Object::Handle { stream, .. } = it { Some(*stream) } else { None })
}

/// The handle's next turn, which moves where a sum that is not steady is cut.
fn turn_of(handle: usize) -> Result<u64, Status> {
    objects::of(handle, |it| {
        let Object::Handle { computed, .. } = it else { return None };
        *computed += 1;
        Some(*computed)
    })
}

/// A handle, and the descriptors of x, w and y with that of the convolution.
type Described = (usize, [usize; 3], usize);

/// What they describe, and how it is multiplied.
fn problem(pass: Pass, (handle, [x, w, y], how): Described) -> Result<(Problem, c_uint), Status> {
    stream_of(handle)?;
    let (how, math) = convolution(how)?;
    Ok((Problem::of(pass, &tensor(x)?, &filter(w)?, &how, &tensor(y)?)?, math))
}

/// What algorithms there are, the fastest first, and in the end those that cannot.
///
/// # Safety
/// `to` is null or has room for so many, `found` is null or can be written.
unsafe fn offers(pass: Pass, described: Described, most: c_int, found: *mut c_int, to: *mut Offer) -> Answer {
    let (problem, math) = problem(pass, described)?;
    demand(most > 0 && !to.is_null() && !found.is_null(), BAD_PARAM)?;
    demand(knobs().has.algorithms, NOT_SUPPORTED)?;
    let all = (0..algorithm::count(pass)).map(|number| match Algorithm::of(&problem, number, math) {
        Ok(it) => Offer {
            algorithm: number,
            status: SUCCESS,
            time: if number == PRECOMPUTED { 0.5 } else { 1.0 + number as f32 },
            memory: it.workspace(&problem),
            determinism: it.is_steady.into(),
            math,
            reserved: [0; 3],
        },
        Err(status) => {
            Offer { algorithm: number, status, time: -1.0, memory: 0, determinism: 0, math, reserved: [0; 3] }
        }
    });
    let mut all: Vec<Offer> = all.collect();
    all.sort_by(|one, other| {
        (one.status, one.time).partial_cmp(&(other.status, other.time)).expect("numbers")
    });
    let mut given = 0;
    for offer in all.into_iter().take(most as usize) {
        // SAFETY: the caller's promise.
        unsafe { to.add(given).write(offer) };
        given += 1;
    }
    // SAFETY: the caller's promise.
    unsafe { answer(found, given as c_int) }
}

/// Tells how large a workspace is.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn workspace(pass: Pass, described: Described, number: c_uint, to: *mut usize) -> Answer {
    let (problem, math) = problem(pass, described)?;
    let algorithm = Algorithm::of(&problem, number, math)?;
    // SAFETY: the caller's promise.
    unsafe { answer(to, algorithm.workspace(&problem)) }
}

/// What is added beside the sums: a factor, and the address of tensors of the shape of the result.
struct Beside {
    beta: *const f32,
    added: usize,
    epilogue: Option<Epilogue>,
}

/// Puts a convolution on the handle's stream.
///
/// # Safety
/// Factors are null or numbers. The tensors that are described lie at the addresses of x, w and y, in memory that is theirs until the stream is
/// through, as does the workspace.
unsafe fn convolve(
    pass: Pass,
    described: Described,
    alpha: *const f32,
    addresses: [usize; 3],
    number: c_uint,
    (workspace, room): (usize, usize),
    beside: Beside,
) -> Answer {
    let which = CALLS.count(CONVOLUTIONS);
    let (problem, math) = problem(pass, described)?;
    let algorithm = Algorithm::of(&problem, number, math)?;
    let needed = algorithm.workspace(&problem);
    let Beside { beta, added, epilogue } = beside;
    // SAFETY: null, or factors.
    let (alpha, beta) = unsafe { (alpha.as_ref(), beta.as_ref()) };
    let (alpha, beta) = (*alpha.ok_or(BAD_PARAM)?, *beta.ok_or(BAD_PARAM)?);
    let bias = epilogue.map(|epilogue| epilogue.bias);
    let there = |at: usize| at != 0 && at.is_multiple_of(problem.numbers.bytes());
    let tensors = addresses.into_iter().chain([added]).chain(bias).all(there);
    let fits =
        room >= needed && (needed == 0 || workspace != 0) && workspace.is_multiple_of(size_of::<f32>());
    demand(tensors && fits, BAD_PARAM)?;
    demand(knobs().fail_at != Some(which), EXECUTION_FAILED)?;
    let turn = turn_of(described.0)?;
    let convolution =
        Convolution { problem, addresses, alpha, beta, added, epilogue, workspace, algorithm, turn };
    // SAFETY: the caller's promise.
    unsafe { queue::put(stream_of(described.0)? as *mut c_void, move || convolution.compute()) }
}

/// Bias and activation, of what descriptors tell.
fn epilogue(
    number: c_uint,
    [y, z, bias]: [usize; 3],
    activation: usize,
    at: usize,
) -> Result<Epilogue, Status> {
    let activation =
        objects::of(
            activation,
            |it| if let Object::Activation(activation) = it { *activation } else { None },
        )?;
    let (y, z, bias) = (tensor(y)?, tensor(z)?, tensor(bias)?);
    let mut sizes = vec![1; y.sizes.len()];
    sizes[1] = y.sizes[1];
    let known = activation.mode == RELU || (activation.mode == IDENTITY && number == PRECOMPUTED);
    let fits = bias == Shape { sizes, ..y.clone() } && z == y;
    demand(known && fits, NOT_SUPPORTED)?;
    Ok(Epilogue { bias: at, activation })
}

/// Puts a graph on the handle's stream.
///
/// # Safety
/// The tensors of the plan lie where the pack says, in memory that is theirs until the stream is through, as does the workspace; numbers of
/// the host until the call returns.
unsafe fn execute(handle: usize, plan: usize, pack: usize) -> Answer {
    let which = CALLS.count(CONVOLUTIONS);
    let stream = stream_of(handle)?;
    let (plan, pack) = (parts::finished(plan)?, parts::finished(pack)?);
    demand(plan.kind == kind::PLAN && pack.kind == kind::PACK, BAD_PARAM)?;
    // SAFETY: the caller's promise.
    let run = unsafe { Run::of(&plan, &pack, engines::order_of_plan(&plan)?, turn_of(handle)?) }?;
    demand(knobs().fail_at != Some(which), EXECUTION_FAILED)?;
    let compute = move || {
        // SAFETY: the caller's promise.
        let done = unsafe { run.compute() };
        if let Err(status) = done {
            eprintln!("fake cuDNN: a graph that cannot be done: {}", name(status).to_string_lossy());
        }
    };
    // SAFETY: the caller's promise.
    unsafe { queue::put(stream as *mut c_void, compute) }
}

/// How often a function was called.
///
/// # Safety
/// `function` is a text that ends with NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn fakeCudnnCalls(function: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    CALLS.of(&unsafe { CStr::from_ptr(function) }.to_string_lossy())
}

/// How much was made and not destroyed: handles and descriptors.
#[unsafe(no_mangle)]
extern "C" fn fakeCudnnAlive() -> u64 {
    objects::alive() as u64
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    knobs().version
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetErrorString(status: Status) -> *const c_char {
    name(status).as_ptr()
}

macro_rules! library {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> Status {
                CALLS.count(stringify!($name));
                // SAFETY: pointers are null or what cudnn.h says; nothing is kept of them behind the call but what a stream needs.
                #[allow(unused_unsafe)]
                let work = || -> Answer { unsafe { $body } };
                work().err().unwrap_or(SUCCESS)
            }
        )*
    };
}

macro_rules! kinds {
    ($($create:ident, $destroy:ident: $fresh:expr;)*) => {
        library! {
            $(
                $create(to: *mut usize) {
                    hand_out(to, $fresh)
                }

                $destroy(handle: usize) {
                    objects::remove(handle, &$fresh)
                }
            )*
        }
    };
}

kinds! {
    cudnnCreate, cudnnDestroy: Object::Handle { stream: 0, computed: 0 };
    cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor: Object::Tensor(None);
    cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor: Object::Filter(None);
    cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor: Object::Convolution { how: None, math: 0 };
    cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor: Object::Activation(None);
}

library! {
    cudnnBackendCreateDescriptor(which: c_uint, to: *mut usize) {
        hand_out(to, parts::create(which)?)
    }

    cudnnBackendDestroyDescriptor(handle: usize) {
        objects::remove(handle, &Object::Part(Box::new(Part::new(0))))
    }

    cudnnBackendSetAttribute(handle: usize, name: c_uint, what: c_uint, count: i64, from: *const c_void) {
        parts::set(handle, name, what, count, from)
    }

    cudnnBackendGetAttribute(
        handle: usize, name: c_uint, what: c_uint, most: i64, found: *mut i64, to: *mut c_void
    ) {
        parts::get(handle, name, (what, most), found, to)
    }

    cudnnBackendFinalize(handle: usize) {
        parts::finish(handle, engines::finished)
    }

    cudnnBackendExecute(handle: usize, plan: usize, pack: usize) {
        execute(handle, plan, pack)
    }

    cudnnSetStream(handle: usize, to: usize) {
        objects::of(handle, |it| if let Object::Handle { stream, .. } = it { *stream = to; Some(()) } else { None })
    }

    cudnnSetTensorNdDescriptor(
        handle: usize, kind: c_uint, axes: c_int, sizes: *const c_int, strides: *const c_int
    ) {
        demand(axes >= 4, NOT_SUPPORTED)?;
        let (sizes, strides) = (list(sizes, axes, 1)?, list(strides, axes, c_int::MIN)?);
        let packed = (0..sizes.len()).map(|axis| sizes[axis + 1..].iter().product::<usize>());
        let is_plain = packed.eq(strides);
        let shape = Shape { numbers: numbers(kind), sizes, is_plain };
        objects::of(handle, |it| matches!(it, Object::Tensor(_)).then(|| *it = Object::Tensor(Some(shape))))
    }

    cudnnSetFilterNdDescriptor(
        handle: usize, kind: c_uint, format: c_uint, axes: c_int, sizes: *const c_int
    ) {
        let shape = Shape { numbers: numbers(kind), sizes: list(sizes, axes, 1)?, is_plain: format == 0 };
        objects::of(handle, |it| matches!(it, Object::Filter(_)).then(|| *it = Object::Filter(Some(shape))))
    }

    cudnnSetConvolutionNdDescriptor(
        handle: usize, axes: c_int, padding: *const c_int, stride: *const c_int, dilation: *const c_int,
        mode: c_uint, sums: c_uint
    ) {
        demand(mode < 2, BAD_PARAM)?;
        let (padding, stride) = (list(padding, axes, 0)?, list(stride, axes, 1)?);
        let (dilation, sums) = (list(dilation, axes, 1)?, numbers(sums));
        let told = How { padding, stride, dilation, is_turned: mode == 0, sums };
        objects::of(handle, |it| match it {
            Object::Convolution { how, .. } => { *how = Some(told); Some(()) }
            _ => None,
        })
    }

    cudnnSetConvolutionMathType(handle: usize, told: c_uint) {
        demand(told < 4, BAD_PARAM)?;
        objects::of(handle, |it| match it {
            Object::Convolution { math, .. } => { *math = told; Some(()) }
            _ => None,
        })
    }

    cudnnGetConvolutionNdForwardOutputDim(how: usize, x: usize, w: usize, axes: c_int, to: *mut c_int) {
        let sizes = problem::output(&tensor(x)?, &filter(w)?, &convolution(how)?.0)?;
        demand(!to.is_null() && axes as usize == sizes.len(), BAD_PARAM)?;
        sizes.iter().enumerate().for_each(|(axis, size)| to.add(axis).write(*size as c_int));
        Ok(())
    }

    cudnnSetActivationDescriptor(handle: usize, mode: c_uint, nan: c_uint, _coefficient: f64) {
        demand(mode < 7 && nan < 2, BAD_PARAM)?;
        let told = Activation { mode, keeps_nan: nan == 1 };
        objects::of(handle, |it| matches!(it, Object::Activation(_)).then(|| *it = Object::Activation(Some(told))))
    }

    cudnnGetConvolutionForwardAlgorithm_v7(
        handle: usize, x: usize, w: usize, how: usize, y: usize, most: c_int, found: *mut c_int, to: *mut Offer
    ) {
        offers(Pass::Forward, (handle, [x, w, y], how), most, found, to)
    }

    cudnnGetConvolutionBackwardDataAlgorithm_v7(
        handle: usize, w: usize, dy: usize, how: usize, dx: usize, most: c_int, found: *mut c_int, to: *mut Offer
    ) {
        offers(Pass::Inputs, (handle, [dx, w, dy], how), most, found, to)
    }

    cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        handle: usize, x: usize, dy: usize, how: usize, dw: usize, most: c_int, found: *mut c_int, to: *mut Offer
    ) {
        offers(Pass::Weights, (handle, [x, dw, dy], how), most, found, to)
    }

    cudnnGetConvolutionForwardWorkspaceSize(
        handle: usize, x: usize, w: usize, how: usize, y: usize, number: c_uint, to: *mut usize
    ) {
        workspace(Pass::Forward, (handle, [x, w, y], how), number, to)
    }

    cudnnGetConvolutionBackwardDataWorkspaceSize(
        handle: usize, w: usize, dy: usize, how: usize, dx: usize, number: c_uint, to: *mut usize
    ) {
        workspace(Pass::Inputs, (handle, [dx, w, dy], how), number, to)
    }

    cudnnGetConvolutionBackwardFilterWorkspaceSize(
        handle: usize, x: usize, dy: usize, how: usize, dw: usize, number: c_uint, to: *mut usize
    ) {
        workspace(Pass::Weights, (handle, [x, dw, dy], how), number, to)
    }

    cudnnConvolutionForward(
        handle: usize, alpha: *const f32, x: usize, at_x: usize, w: usize, at_w: usize, how: usize, number: c_uint,
        room: usize, bytes: usize, beta: *const f32, y: usize, at_y: usize
    ) {
        let beside = Beside { beta, added: at_y, epilogue: None };
        let (described, at) = ((handle, [x, w, y], how), [at_x, at_w, at_y]);
        convolve(Pass::Forward, described, alpha, at, number, (room, bytes), beside)
    }

    cudnnConvolutionBiasActivationForward(
        handle: usize, alpha: *const f32, x: usize, at_x: usize, w: usize, at_w: usize, how: usize, number: c_uint,
        room: usize, bytes: usize, beta: *const f32, z: usize, at_z: usize, bias: usize, at_bias: usize,
        activation: usize, y: usize, at_y: usize
    ) {
        let epilogue = Some(epilogue(number, [y, z, bias], activation, at_bias)?);
        let beside = Beside { beta, added: at_z, epilogue };
        let (described, at) = ((handle, [x, w, y], how), [at_x, at_w, at_y]);
        convolve(Pass::Forward, described, alpha, at, number, (room, bytes), beside)
    }

    cudnnConvolutionBackwardData(
        handle: usize, alpha: *const f32, w: usize, at_w: usize, dy: usize, at_dy: usize, how: usize, number: c_uint,
        room: usize, bytes: usize, beta: *const f32, dx: usize, at_dx: usize
    ) {
        let beside = Beside { beta, added: at_dx, epilogue: None };
        let (described, at) = ((handle, [dx, w, dy], how), [at_dx, at_w, at_dy]);
        convolve(Pass::Inputs, described, alpha, at, number, (room, bytes), beside)
    }

    cudnnConvolutionBackwardFilter(
        handle: usize, alpha: *const f32, x: usize, at_x: usize, dy: usize, at_dy: usize, how: usize, number: c_uint,
        room: usize, bytes: usize, beta: *const f32, dw: usize, at_dw: usize
    ) {
        let beside = Beside { beta, added: at_dw, epilogue: None };
        let (described, at) = ((handle, [x, dw, dy], how), [at_x, at_dw, at_dy]);
        convolve(Pass::Weights, described, alpha, at, number, (room, bytes), beside)
    }
}
