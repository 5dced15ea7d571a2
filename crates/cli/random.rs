//! Numbers that must differ between two lives of a program, and that nothing computed depends on.

/// A number from the system.
///
/// *Errors*: of the system call.
pub fn u64() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
