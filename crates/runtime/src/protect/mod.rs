//! The protection of acknowledged data: journals, the vault, the pool that outlives its process,
//! the patrol over the pool's lines, and the check that a disk is the one that data in a journal,
//! vault or pool belongs to.
//!
//! | module | protects against |
//! | --- | --- |
//! | [`journal`] | loss of memory: writes are recorded on a device of their own |
//! | [`vault`] | loss of mains power: dirty lines are dumped while the UPS lasts |
//! | [`power`] | writes acknowledged from memory that the vault could not take |
//! | [`adopt`] | death of the process: the next process adopts its pool |
//! | [`record_again`] | the same: the next process records the adopted data in the journal again |
//! | [`restore`] | the same losses: a start restores the data of journal or vault into the pool |
//! | [`patrol`] | damage in memory: lines are sealed, verified and corrected |
//! | [`guard`] | a disk that was changed while its newest data was elsewhere |
//! | [`presence`] | devices that are deleted or replaced while in use |

pub(crate) mod adopt;
pub(crate) mod guard;
pub(crate) mod journal;
pub(crate) mod patrol;
pub(crate) mod power;
pub(crate) mod presence;
pub(crate) mod record_again;
pub(crate) mod restore;
pub(crate) mod vault;
