//! cuBLASLt and cuDNN where there is no GPU: the library that is missing, and the real one where it is.
//!
//! A real one is never downloaded here: `pip download --no-deps nvidia-cublas`, unpack it anywhere, and name its
//! libcublasLt.so.13 in `DTRAIN_TEST_CUBLASLT`; `nvidia-cudnn-cu13` and libcudnn.so.9 in `DTRAIN_TEST_CUDNN`.

use dtrain_cuda::libraries::LibraryError;
use dtrain_cuda::libraries::cublaslt::{self, CublasLt};
use dtrain_cuda::libraries::cudnn::{self, Cudnn};
use libloading::Library;

/// Opens the library that a variable names, so that its bare name means this file; says whether there is one.
fn named(variable: &str) -> bool {
    let Some(path) = std::env::var_os(variable) else { return false };
    // SAFETY: its initialisers touch nothing of ours.
    let library = unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{variable}: {error}"));
    // It stays open to the end.
    std::mem::forget(library);
    true
}

/// A version with its library, or the words of one that is missing.
fn judged(variable: &str, version: Result<u64, LibraryError>, least: u64) -> bool {
    match version {
        Ok(version) => {
            println!("{variable}: version {version}");
            assert!(version >= least, "{variable}: {version}");
            true
        }
        Err(error) => {
            assert!(std::env::var_os(variable).is_none(), "{error}");
            assert!(matches!(error, LibraryError::Missing { .. }), "{error}");
            assert!(error.to_string().contains("hint: "), "{error}");
            println!("skipped: {variable} names none, and {error}");
            false
        }
    }
}

#[test]
fn cublaslt_tells_its_version_without_a_driver_and_is_an_error_where_it_is_missing() {
    named("DTRAIN_TEST_CUBLASLT");
    let there = judged("DTRAIN_TEST_CUBLASLT", cublaslt::version(), 11_000);
    match CublasLt::new() {
        // A machine with a GPU.
        Ok(_) => assert!(there),
        Err(LibraryError::Missing { .. }) => assert!(!there),
        Err(error) => {
            println!("{error}");
            assert!(there && matches!(error, LibraryError::Call { call: "cublasLtCreate", .. }), "{error}");
        }
    }
}

#[test]
fn cudnn_tells_its_version_without_a_driver_and_is_an_error_where_it_is_missing() {
    named("DTRAIN_TEST_CUDNN");
    let there = judged("DTRAIN_TEST_CUDNN", cudnn::version(), 8_000);
    // SAFETY: no stream: the default one.
    match Cudnn::new().and_then(|library| unsafe { library.on(std::ptr::null_mut()) }) {
        Ok(_) => assert!(there),
        Err(LibraryError::Missing { .. }) => assert!(!there),
        Err(error) => {
            println!("{error}");
            assert!(there && matches!(error, LibraryError::Call { call: "cudnnCreate", .. }), "{error}");
        }
    }
}
