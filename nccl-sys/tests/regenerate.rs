//! The committed bindings are what bindgen makes of the header.
//!
//! `cargo test -p nccl-sys --features regenerate`, which CI does on one day of twelve: bindgen takes as long to build as a crate of dtrain's.
//!
//! Needs libclang 14 to 19 (a system one, or `pip install libclang` and its folder in `LIBCLANG_PATH`); where there is
//! none, the test says so and has nothing to compare. `DTRAIN_RENEW_BINDINGS=1` writes them anew.

#[path = "../recipe.rs"]
mod recipe;

/// The libclang versions that were seen to give the same bytes.
const TRIED: std::ops::RangeInclusive<u32> = 14..=19;

#[test]
fn the_committed_bindings_are_what_bindgen_makes_of_the_header() {
    if let Err(why) = clang_sys::load() {
        return println!("skipped: no libclang was found, so the bindings were not made anew ({why})");
    }
    let version = bindgen::clang_version();
    if !version.parsed.is_some_and(|(major, _)| TRIED.contains(&major)) {
        return println!(
            "skipped: {} is not among libclang {TRIED:?}, which give the same bytes",
            version.full
        );
    }
    let made = recipe::bindings();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bindings.rs");
    if std::env::var_os("DTRAIN_RENEW_BINDINGS").is_some() {
        std::fs::write(path, &made).expect("a file of this repository");
    }
    let committed = std::fs::read_to_string(path).expect("the bindings are committed");
    assert!(committed == made, "src/bindings.rs is not what {} makes of include/nccl.h", version.full);
    println!("compared with {}", version.full);
}
