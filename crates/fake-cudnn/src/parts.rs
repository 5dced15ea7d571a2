//! Descriptors of graphs, as they are handed out: attributes are set before one is finished, and read behind it.
//!
//! What is set of other descriptors is kept as it is then.

use crate::objects::{self, Object};
use crate::part::{Part, kind};
use crate::status::{Answer, BAD_PARAM, NOT_SUPPORTED, Status, demand};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// `CUDNN_TYPE_BACKEND_DESCRIPTOR`.
const DESCRIPTORS: u32 = 15;

/// Bytes of a value of a `cudnnBackendAttributeType_t`.
fn bytes_of(what: u32) -> Option<usize> {
    match what {
        // Handles, 64 bits, pointers, descriptors.
        0 | 3 | 6 | DESCRIPTORS => Some(8),
        // Enums and floats.
        1 | 4 | 7 | 8 | 9 | 11 | 14 | 18 => Some(4),
        // Booleans.
        2 => Some(1),
        _ => None,
    }
}

/// What a handle says, as it is now. *Errors*: it is none of a descriptor that was finished.
pub(crate) fn finished(handle: usize) -> Result<Arc<Part>, Status> {
    objects::of(handle, |it| match it {
        Object::Part(part) if part.is_finished => Some(Arc::new((**part).clone())),
        _ => None,
    })
}

fn each(handle: usize, work: impl FnOnce(&mut Part) -> Answer) -> Answer {
    objects::of(handle, |it| if let Object::Part(part) = it { Some(work(part)) } else { None })?
}

/// Sets an attribute.
///
/// # Safety
/// So many values of that type lie there.
pub(crate) unsafe fn set(
    handle: usize,
    attribute: u32,
    what: u32,
    count: i64,
    from: *const c_void,
) -> Answer {
    let bytes = bytes_of(what).ok_or(NOT_SUPPORTED)?;
    demand(count >= 0 && (count == 0 || !from.is_null()), BAD_PARAM)?;
    let from = from.cast::<u8>();
    let values: Vec<u64> = (0..count as usize)
        .map(|i| {
            let mut value = [0u8; 8];
            // SAFETY: the caller's promise; the least significant byte comes first.
            unsafe { value[..bytes].copy_from_slice(std::slice::from_raw_parts(from.add(i * bytes), bytes)) };
            u64::from_le_bytes(value)
        })
        .collect();
    let told = if what == DESCRIPTORS {
        values.iter().map(|of| finished(*of as usize)).collect()
    } else {
        Ok(Vec::new())
    };
    let parts: Vec<Arc<Part>> = told?;
    each(handle, |part| {
        demand(!part.is_finished, BAD_PARAM)?;
        if what == DESCRIPTORS {
            part.put_parts(attribute, parts);
        } else {
            part.put_values(attribute, what, values);
        }
        Ok(())
    })
}

/// Reads an attribute: values to where they are wanted, descriptors into those that lie there.
///
/// # Safety
/// There is room for so many values of that type, or there lie so many descriptors; `found` can be written.
pub(crate) unsafe fn get(
    handle: usize,
    attribute: u32,
    (what, most): (u32, i64),
    found: *mut i64,
    to: *mut c_void,
) -> Answer {
    let bytes = bytes_of(what).ok_or(NOT_SUPPORTED)?;
    let part = finished(handle)?;
    demand(most >= 0 && !to.is_null() && !found.is_null(), BAD_PARAM)?;
    let count = if what == DESCRIPTORS {
        let parts = part.parts(attribute);
        for (i, part) in parts.iter().take(most as usize).enumerate() {
            // SAFETY: the caller's promise.
            let blank = unsafe { to.cast::<usize>().add(i).read() };
            each(blank, |to| {
                demand(to.kind == part.kind && !to.is_finished, BAD_PARAM)?;
                *to = (**part).clone();
                Ok(())
            })?;
        }
        parts.len()
    } else {
        let (is, values) = part.typed(attribute).ok_or(NOT_SUPPORTED)?;
        demand(*is == what, BAD_PARAM)?;
        for (i, value) in values.iter().take(most as usize).enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let to = to.cast::<u8>().add(i * bytes);
                to.copy_from_nonoverlapping(value.to_le_bytes().as_ptr(), bytes);
            }
        }
        values.len()
    };
    // SAFETY: it can be written.
    unsafe { found.write(count as i64) };
    Ok(())
}

/// Finishes a descriptor, with what the library adds to it.
pub(crate) fn finish(handle: usize, added: impl FnOnce(&mut Part) -> Answer) -> Answer {
    // What is looked up meanwhile is other descriptors.
    let mut part = objects::of(handle, |it| match it {
        Object::Part(part) if !part.is_finished => Some((**part).clone()),
        _ => None,
    })?;
    added(&mut part)?;
    part.is_finished = true;
    each(handle, |to| {
        *to = part;
        Ok(())
    })
}

/// A new one, of a kind that is known here.
pub(crate) fn create(which: c_uint) -> Result<Object, Status> {
    use kind::*;
    let known = [
        POINTWISE,
        CONVOLUTION,
        OPERATION_FORWARD,
        OPERATION_WEIGHTS,
        OPERATION_INPUTS,
        ENGINE,
        CONFIGURATION,
        HEURISTICS,
        PLAN,
        KNOB_CHOICE,
        OPERATION_POINTWISE,
        GRAPH,
        PACK,
        TENSOR,
        PRODUCT,
        OPERATION_PRODUCT,
        REDUCTION,
        OPERATION_REDUCTION,
        OPERATION_RESHAPE,
    ];
    demand(known.contains(&which), NOT_SUPPORTED)?;
    Ok(Object::Part(Box::new(Part::new(which))))
}
