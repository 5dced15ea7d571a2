//! Does nothing, unless the feature `buildtime-bindgen` asks for bindings made from the header here and now.

#[cfg(feature = "buildtime-bindgen")]
#[path = "recipe.rs"]
mod recipe;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "buildtime-bindgen")]
    {
        println!("cargo::rerun-if-changed=recipe.rs");
        println!("cargo::rerun-if-changed=include");
        let folder = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names it"));
        let folder = folder.join("bindings.rs");
        std::fs::write(&folder, recipe::bindings()).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    }
}
