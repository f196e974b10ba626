//! Shared code of the fuzz targets. The head of a target states the properties that it checks,
//! beyond the absence of panics.

pub mod log;
pub mod nbd;
