//! What was handed out: handles, and descriptors with their attributes. What was given back, or never was, is found out.

use crate::attributes::{Attributes, Row};
use crate::status::{INVALID_VALUE, NOT_INITIALIZED, Status};
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) const COMPUTE_TYPE: c_uint = 0;
pub(crate) const SCALE_TYPE: c_uint = 1;
pub(crate) const POINTER_MODE: c_uint = 2;
pub(crate) const TURNED_A: c_uint = 3;
pub(crate) const TURNED_B: c_uint = 4;
pub(crate) const TURNED_C: c_uint = 5;
pub(crate) const EPILOGUE: c_uint = 7;
pub(crate) const BIAS_POINTER: c_uint = 8;
pub(crate) const KEPT_POINTER: c_uint = 11;
pub(crate) const KEPT_PITCH: c_uint = 12;
pub(crate) const BIAS_TYPE: c_uint = 26;

/// The value of `BIAS_TYPE` that stands for the type of D.
pub(crate) const AS_D: u64 = u32::MAX as u64;

pub(crate) const TYPE: c_uint = 0;
pub(crate) const ORDER: c_uint = 1;
pub(crate) const ROWS: c_uint = 2;
pub(crate) const COLUMNS: c_uint = 3;
pub(crate) const PITCH: c_uint = 4;
pub(crate) const BATCHES: c_uint = 5;

pub(crate) const MOST_WORKSPACE: c_uint = 1;
pub(crate) const SCHEMES: c_uint = 3;
/// The alignment of A; those of B, C and D follow.
pub(crate) const ALIGNMENT: c_uint = 5;

const PRODUCT: &[Row] = &[
    (COMPUTE_TYPE, 4, 0),
    (SCALE_TYPE, 4, 0),
    (POINTER_MODE, 4, 0),
    (TURNED_A, 4, 0),
    (TURNED_B, 4, 0),
    (TURNED_C, 4, 0),
    (EPILOGUE, 4, 1),
    (BIAS_POINTER, 8, 0),
    (10, 8, 0),
    (KEPT_POINTER, 8, 0),
    (KEPT_PITCH, 8, 0),
    (15, 4, 0),
    (25, 1, 0),
    (BIAS_TYPE, 4, AS_D),
];
const LAYOUT: &[Row] =
    &[(TYPE, 4, 0), (ORDER, 4, 0), (ROWS, 8, 0), (COLUMNS, 8, 0), (PITCH, 8, 0), (BATCHES, 4, 1), (6, 8, 0)];
const PREFERENCE: &[Row] = &[
    (0, 4, 0),
    (MOST_WORKSPACE, 8, 0),
    (SCHEMES, 4, 7),
    (ALIGNMENT, 4, 256),
    (ALIGNMENT + 1, 4, 256),
    (ALIGNMENT + 2, 4, 256),
    (ALIGNMENT + 3, 4, 256),
    (9, 4, 0),
    (12, 8, u64::MAX),
];

/// What is handed out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Library,
    Product,
    Layout,
    Preference,
}

impl Kind {
    /// One as it is at first.
    pub fn fresh(self) -> Attributes {
        Attributes::new(match self {
            Self::Library => &[],
            Self::Product => PRODUCT,
            Self::Layout => LAYOUT,
            Self::Preference => PREFERENCE,
        })
    }

    /// What a call says to something that is not of this kind.
    fn refused(self) -> Status {
        if self == Self::Library { NOT_INITIALIZED } else { INVALID_VALUE }
    }
}

struct Objects {
    made: usize,
    alive: BTreeMap<usize, (Kind, Attributes)>,
}

static OBJECTS: Mutex<Objects> = Mutex::new(Objects { made: 0, alive: BTreeMap::new() });

fn objects() -> MutexGuard<'static, Objects> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands one out. Its handle is no address, and none that was there before.
pub(crate) fn add(kind: Kind, attributes: Attributes) -> usize {
    let mut objects = objects();
    objects.made += 1;
    let handle = 0xb1a5_0000 + objects.made;
    objects.alive.insert(handle, (kind, attributes));
    handle
}

/// Does something to one.
pub(crate) fn of<R>(kind: Kind, handle: usize, work: impl FnOnce(&mut Attributes) -> R) -> Result<R, Status> {
    match objects().alive.get_mut(&handle) {
        Some((known, attributes)) if *known == kind => Ok(work(attributes)),
        _ => Err(kind.refused()),
    }
}

/// One as it is now.
pub(crate) fn look(kind: Kind, handle: usize) -> Result<Attributes, Status> {
    of(kind, handle, |attributes| attributes.clone())
}

/// Takes one back.
pub(crate) fn remove(kind: Kind, handle: usize) -> Result<(), Status> {
    of(kind, handle, |_| ())?;
    objects().alive.remove(&handle);
    Ok(())
}

/// How many there are.
pub(crate) fn alive() -> usize {
    objects().alive.len()
}
