//! What was handed out: handles and descriptors. What was given back, or never was, is found out.

use crate::part::Part;
use crate::status::{BAD_PARAM, Status};
use dtrain_fake_common::numbers::Numbers;
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a tensor or filter descriptor tells.
#[derive(Clone, PartialEq)]
pub(crate) struct Shape {
    /// None where this library has no such numbers.
    pub numbers: Option<Numbers>,
    pub sizes: Vec<usize>,
    /// Whether numbers lie in the order of the sizes, without gaps.
    pub is_plain: bool,
}

/// What a convolution descriptor tells, along each axis.
#[derive(Clone)]
pub(crate) struct How {
    pub padding: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    pub is_turned: bool,
    pub sums: Option<Numbers>,
}

/// The modes of activations that take part.
pub(crate) const RELU: c_uint = 1;
pub(crate) const IDENTITY: c_uint = 5;

/// What an activation descriptor tells.
#[derive(Clone, Copy)]
pub(crate) struct Activation {
    pub mode: c_uint,
    pub keeps_nan: bool,
}

/// What is handed out; a descriptor tells nothing before it was set.
#[derive(Clone)]
pub(crate) enum Object {
    Handle {
        stream: usize,
        /// What it was asked to compute so far; other handles do not move where its sums are cut.
        computed: u64,
    },
    Tensor(Option<Shape>),
    Filter(Option<Shape>),
    Convolution {
        how: Option<How>,
        math: c_uint,
    },
    Activation(Option<Activation>),
    /// Of a graph.
    Part(Box<Part>),
}

struct Objects {
    made: usize,
    alive: BTreeMap<usize, Object>,
}

static OBJECTS: Mutex<Objects> = Mutex::new(Objects { made: 0, alive: BTreeMap::new() });

fn objects() -> MutexGuard<'static, Objects> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands one out. Its handle is no address, and none that was there before.
pub(crate) fn add(object: Object) -> usize {
    let mut objects = objects();
    objects.made += 1;
    let handle = 0xd1a5_0000 + objects.made;
    objects.alive.insert(handle, object);
    handle
}

/// Does something to one, if it is of the kind that `work` wants.
pub(crate) fn of<R>(handle: usize, work: impl FnOnce(&mut Object) -> Option<R>) -> Result<R, Status> {
    objects().alive.get_mut(&handle).and_then(work).ok_or(BAD_PARAM)
}

/// Takes one back that is of the kind of `like`.
pub(crate) fn remove(handle: usize, like: &Object) -> Result<(), Status> {
    let kind = std::mem::discriminant(like);
    of(handle, |object| (std::mem::discriminant(object) == kind).then_some(()))?;
    objects().alive.remove(&handle);
    Ok(())
}

/// How many there are.
pub(crate) fn alive() -> usize {
    objects().alive.len()
}
