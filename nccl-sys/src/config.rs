//! The values that C takes from `NCCL_CONFIG_INITIALIZER`, a macro that bindgen cannot translate.

use crate::{NCCL_API_MAGIC, NCCL_VERSION_CODE, ncclConfig_t};
use core::ffi::c_int;

/// `NCCL_CONFIG_UNDEF_INT`: the library decides. A macro of the C compiler's own limits, so it is written out here.
pub const UNDEFINED: c_int = c_int::MIN;

impl ncclConfig_t {
    /// What `NCCL_CONFIG_INITIALIZER` says: everything undefined, with the size, the magic number and the version by which
    /// the library knows which fields there are. An older library reads as many as it knows.
    pub const INITIALIZER: Self = Self {
        size: size_of::<Self>(),
        magic: NCCL_API_MAGIC,
        version: NCCL_VERSION_CODE,
        blocking: UNDEFINED,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: core::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: core::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
        graphStreamOrdering: UNDEFINED,
        launchOrderImplicit: UNDEFINED,
        numRmaSig: UNDEFINED,
        rmaEagerInit: UNDEFINED,
        hostCftMode: UNDEFINED,
        nvlsHostMode: UNDEFINED,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initialiser_is_that_of_the_header() {
        let text = include_str!("../include/nccl.h");
        let macro_text = text.split("#define NCCL_CONFIG_INITIALIZER").nth(1).expect("it is there");
        let macro_text = macro_text.split("}\n").next().expect("it ends");
        let undefined = macro_text.matches("NCCL_CONFIG_UNDEF_INT").count();
        let null = macro_text.matches("NCCL_CONFIG_UNDEF_PTR").count();
        // Beside size, magic and version every field of the struct is one of these.
        assert_eq!((undefined, null), (21, 2));
        let config = ncclConfig_t::INITIALIZER;
        assert_eq!((config.size, config.magic, config.version), (size_of_val(&config), 0xcafe_beef, 23203));
        let fields = size_of::<usize>() + 2 * 4 + undefined * 4 + null * 8;
        assert!(size_of_val(&config) - fields < 3 * 8, "only padding is left besides the fields counted");
    }
}
