//! What the fuzz targets share. A target's promise stands at its top: not only that nothing
//! panics, but what must hold of whatever came out.

pub mod log;
pub mod nbd;
