//! The protection of acknowledged data: journals, the vault, and the patrol over the
//! pool's lines.
//!
//! | module | protects against |
//! | --- | --- |
//! | [`journal`] | loss of memory: writes are recorded on a device of their own |
//! | [`vault`] | loss of mains power: dirty lines are dumped while the UPS lasts |
//! | [`power`] | writes acknowledged from memory that the vault could not take |
//! | [`restore`] | the same losses: a start restores the data of journal or vault into the pool |
//! | [`patrol`] | damage in memory: lines are sealed, verified and corrected |

pub(crate) mod journal;
pub(crate) mod patrol;
pub(crate) mod power;
pub(crate) mod restore;
pub(crate) mod vault;
