//! Attributes: numbers of one to eight bytes which a caller sets and reads by address and length, as the library does it for everything
//! that it describes.

use crate::status::{Answer, INVALID_VALUE};
use std::ffi::{c_uint, c_void};

/// What an attribute is called by, its bytes, its value at first.
pub(crate) type Row = (c_uint, usize, u64);

/// The attributes of one thing.
#[derive(Clone)]
pub(crate) struct Attributes(Vec<Row>);

impl Attributes {
    pub fn new(table: &[Row]) -> Self {
        Self(table.to_vec())
    }

    /// Gives one of the table a value.
    pub fn with(mut self, attribute: c_uint, value: u64) -> Self {
        self.0.iter_mut().filter(|row| row.0 == attribute).for_each(|row| row.2 = value);
        self
    }

    /// The value of one that the table has.
    pub fn get(&self, attribute: c_uint) -> u64 {
        self.0.iter().find(|row| row.0 == attribute).expect("an attribute of the table").2
    }

    /// The values of all, in the order of the table.
    pub fn values(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|row| row.2)
    }

    /// Takes what a caller sets.
    ///
    /// # Safety
    /// `from` is null or has so many bytes.
    pub unsafe fn set(&mut self, attribute: c_uint, from: *const c_void, bytes: usize) -> Answer {
        let row = self.0.iter_mut().find(|row| row.0 == attribute).ok_or(INVALID_VALUE)?;
        if from.is_null() || bytes != row.1 {
            return Err(INVALID_VALUE);
        }
        let mut value = [0u8; 8];
        // SAFETY: the caller's promise; no attribute has more than eight bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.cast(), value.as_mut_ptr(), bytes) };
        row.2 = u64::from_le_bytes(value);
        Ok(())
    }

    /// Tells a caller a value, and how long it is. Whoever gives no room is told the length alone.
    ///
    /// # Safety
    /// `to` is null or has so much room, `written` is null or can be written.
    pub unsafe fn tell(
        &self,
        attribute: c_uint,
        to: *mut c_void,
        room: usize,
        written: *mut usize,
    ) -> Answer {
        let &(_, bytes, value) = self.0.iter().find(|row| row.0 == attribute).ok_or(INVALID_VALUE)?;
        if !written.is_null() {
            // SAFETY: the caller's promise.
            unsafe { written.write(bytes) };
        }
        match (room, to.is_null()) {
            (0, _) if !written.is_null() => Ok(()),
            (room, false) if room >= bytes => {
                let value = value.to_le_bytes();
                // SAFETY: the caller's promise; the value is memory of its own.
                unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), bytes) };
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }
}
