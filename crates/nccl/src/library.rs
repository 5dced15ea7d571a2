//! An opened library: its version, its errors in words, and which functions it has.
//!
//! It is never closed: NCCL starts threads that outlive its communicators.

use crate::{NcclError, NcclVersion};
use nccl_sys::{NcclLib, ncclComm_t, ncclResult_t, ncclUniqueId};
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the ranks of a communicator must share before they meet. It is no secret key: who has it can join.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

impl UniqueId {
    pub(crate) fn raw(&self) -> ncclUniqueId {
        ncclUniqueId { internal: self.0.map(|byte| byte as c_char) }
    }

    pub(crate) fn of(raw: &ncclUniqueId) -> Self {
        Self(raw.internal.map(|byte| byte as u8))
    }
}

macro_rules! functions {
    ($($name:ident $since:literal $required:literal $text:literal),* $(,)?) => {
        /// The functions that this crate calls, by their names in C.
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Function { $($name),* }

        impl Function {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The first version of NCCL that had it.
            #[must_use]
            pub fn since(self) -> &'static str {
                match self { $(Self::$name => $since),* }
            }

            /// Whether a library without it is of no use at all.
            #[must_use]
            pub fn is_required(self) -> bool {
                match self { $(Self::$name => $required),* }
            }
        }

        impl fmt::Display for Function {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text),* })
            }
        }
    };
}

functions! {
    GetVersion "2.0" true "ncclGetVersion",
    GetUniqueId "2.0" true "ncclGetUniqueId",
    GetErrorString "2.0" true "ncclGetErrorString",
    GetLastError "2.13" false "ncclGetLastError",
    CommInitRankConfig "2.14" true "ncclCommInitRankConfig",
    CommFinalize "2.14" true "ncclCommFinalize",
    CommDestroy "2.0" true "ncclCommDestroy",
    CommAbort "2.4" true "ncclCommAbort",
    CommGetAsyncError "2.4" true "ncclCommGetAsyncError",
    GroupStart "2.0" true "ncclGroupStart",
    GroupEnd "2.0" true "ncclGroupEnd",
    Send "2.7" true "ncclSend",
    Recv "2.7" true "ncclRecv",
    AllReduce "2.0" true "ncclAllReduce",
}

/// An opened library; clones are the same one.
#[derive(Clone)]
pub struct NcclLibrary {
    nccl: Arc<ManuallyDrop<NcclLib>>,
    path: PathBuf,
    version: NcclVersion,
}

impl fmt::Debug for NcclLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} from {}", self.version, self.path.display())
    }
}

impl NcclLibrary {
    /// Opens the library at `path`: a file, or a name that the loader looks for.
    ///
    /// *Errors*: in words, for the list of all that was tried; [`NcclError::Missing`] for one that is too old.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        // SAFETY: opening runs the constructors of a library that the user chose; NCCL's and RCCL's touch nothing of ours.
        let nccl =
            unsafe { NcclLib::new(path) }.map_err(|error| OpenError::NotOpened(with_source(&error)))?;
        let mut library =
            Self { nccl: Arc::new(ManuallyDrop::new(nccl)), path: path.to_owned(), version: NcclVersion(0) };
        if !library.has(Function::GetVersion) {
            return Err(OpenError::NotOpened("it has no ncclGetVersion, so it is no NCCL".to_owned()));
        }
        let mut code: c_int = 0;
        // SAFETY: the function is there and writes one number.
        let result = unsafe { library.nccl.ncclGetVersion(&mut code) };
        library.version = NcclVersion(code.unsigned_abs());
        if result != ncclResult_t::ncclSuccess {
            return Err(OpenError::NotOpened(format!("ncclGetVersion answers {}", result.0)));
        }
        let lacks = Function::ALL.iter().find(|function| function.is_required() && !library.has(**function));
        lacks.map_or(Ok(()), |function| library.require(*function)).map_err(OpenError::TooOld)?;
        Ok(library)
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says that it is.
    #[must_use]
    pub fn version(&self) -> NcclVersion {
        self.version
    }

    /// Whether it has a function.
    #[must_use]
    pub fn has(&self, function: Function) -> bool {
        let nccl = &self.nccl;
        match function {
            Function::GetVersion => nccl.ncclGetVersion.is_ok(),
            Function::GetUniqueId => nccl.ncclGetUniqueId.is_ok(),
            Function::GetErrorString => nccl.ncclGetErrorString.is_ok(),
            Function::GetLastError => nccl.ncclGetLastError.is_ok(),
            Function::CommInitRankConfig => nccl.ncclCommInitRankConfig.is_ok(),
            Function::CommFinalize => nccl.ncclCommFinalize.is_ok(),
            Function::CommDestroy => nccl.ncclCommDestroy.is_ok(),
            Function::CommAbort => nccl.ncclCommAbort.is_ok(),
            Function::CommGetAsyncError => nccl.ncclCommGetAsyncError.is_ok(),
            Function::GroupStart => nccl.ncclGroupStart.is_ok(),
            Function::GroupEnd => nccl.ncclGroupEnd.is_ok(),
            Function::Send => nccl.ncclSend.is_ok(),
            Function::Recv => nccl.ncclRecv.is_ok(),
            Function::AllReduce => nccl.ncclAllReduce.is_ok(),
        }
    }

    /// *Errors*: [`NcclError::Missing`] if it lacks the function.
    pub fn require(&self, function: Function) -> Result<(), NcclError> {
        if self.has(function) {
            return Ok(());
        }
        Err(NcclError::Missing { path: self.path.clone(), function, version: self.version })
    }

    /// Makes the id by which ranks meet. The process that makes it must live until all have.
    ///
    /// *Errors*: [`NcclError::Failed`].
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut raw = ncclUniqueId { internal: [0; 128] };
        // SAFETY: it writes the id.
        let code = unsafe { self.nccl.ncclGetUniqueId(&mut raw) };
        self.check("ncclGetUniqueId", code, std::ptr::null_mut())?;
        Ok(UniqueId::of(&raw))
    }

    pub(crate) fn raw(&self) -> &NcclLib {
        &self.nccl
    }

    /// Passes on a code that means success or work in progress.
    pub(crate) fn check(
        &self,
        call: &'static str,
        code: ncclResult_t,
        comm: ncclComm_t,
    ) -> Result<ncclResult_t, NcclError> {
        match code {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(code),
            _ => Err(self.failed(call, code, comm)),
        }
    }

    /// A code as an error, with all that the library says of it.
    fn failed(&self, call: &'static str, code: ncclResult_t, comm: ncclComm_t) -> NcclError {
        // SAFETY: it gives the address of a constant text.
        let meaning = text(unsafe { self.nccl.ncclGetErrorString(code) });
        let last = match self.has(Function::GetLastError) {
            // SAFETY: the communicator is alive or null, which it allows; it gives the address of a text of the library.
            true => text(unsafe { self.nccl.ncclGetLastError(comm) }),
            false => String::new(),
        };
        NcclError::Failed { call, code: code.0, meaning, last }
    }
}

/// Why a candidate is not the library.
#[derive(Debug)]
pub(crate) enum OpenError {
    NotOpened(String),
    TooOld(NcclError),
}

/// What the loader says; the reason stands in the source of the error.
fn with_source(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// A C text of the library as words in one line.
fn text(address: *const c_char) -> String {
    if address.is_null() {
        return String::new();
    }
    // SAFETY: the library ends its texts with a zero and keeps them.
    let text = unsafe { CStr::from_ptr(address) }.to_string_lossy();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_header_writes_them() {
        for (code, text) in [(23203, "2.32.3"), (21403, "2.14.3"), (2804, "2.8.4"), (2408, "2.4.8")] {
            assert_eq!(NcclVersion(code).to_string(), text);
        }
    }
}
