//! The protection of acknowledged data: what the shards do for their journals, the vault, and the
//! patrol over the pool's lines.
//!
//! | module | protects against |
//! | --- | --- |
//! | [`crate::journal`] | loss of memory: writes are recorded on a device of their own |
//! | [`retention`] | the end of records whose data the disk did not take |
//! | [`regain`] | lost sectors: they are restored from the journal |
//! | [`vault`] | loss of mains power: dirty lines are dumped while the UPS lasts |
//! | [`power`] | writes acknowledged from memory that the vault could not take |
//! | [`restore`] | the same losses: a start restores the data of journal or vault into the pool |
//! | [`patrol`] | damage in memory: lines are sealed, verified and corrected |

mod host;
pub(crate) mod patrol;
pub(crate) mod power;
mod regain;
pub(crate) mod restore;
pub(crate) mod retention;
pub(crate) mod vault;
