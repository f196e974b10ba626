//! What the control server asks of the daemon.

use forebay_api::{DrillReport, Problem, Progress, Status, VolumeStatus};
use forebay_config::{VolumeChange, VolumeSpec};

/// Is told how far a long operation is: dirty bytes left, and dirty bytes when it began. May be
/// called from any thread and as often as there is something to tell; it never blocks.
pub type ProgressFn<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// The daemon, as the control server sees it.
///
/// The server's duties: specifications and changes have been checked by themselves (names, words,
/// a change that says something), and every method is called on a thread that may block.
///
/// The manager's duties: methods may be called at the same time from several threads. What cannot
/// be is answered with a [`Problem`] that names the thing and the remedy. An operation goes on
/// when the client that asked for it has gone away.
pub trait Manager: Send + Sync {
    /// The state of everything, journals included: a [`forebay_api::JournalFigures`] of each turns
    /// into what is told. Answers in milliseconds, whatever the disks do.
    fn status(&self) -> Status;

    /// All volumes, in the order they were added. As quick as [`Manager::status`].
    fn volume_list(&self) -> Vec<VolumeStatus>;

    /// Opens the backing and serves the volume.
    ///
    /// # Errors
    /// The name or the disk is in use, there are too many volumes, or backing or journal can't be
    /// opened.
    fn add_volume(&self, spec: VolumeSpec) -> Result<VolumeStatus, Problem>;

    /// Changes settings of a volume while it is served; see [`VolumeSpec::with`] for those it
    /// keeps.
    ///
    /// # Errors
    /// There is no such volume, or it can't have the settings: write-back without a protection,
    /// another journal.
    fn set_volume(&self, name: &str, change: VolumeChange) -> Result<VolumeStatus, Problem>;

    /// Writes the volume's dirty data to its disk, then takes the volume away. If that fails the
    /// volume stays, with its data.
    ///
    /// # Errors
    /// There is no such volume, or its disk fails.
    fn remove_volume(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem>;

    /// Writes to the disk what is dirty now.
    ///
    /// # Errors
    /// There is no such volume, or its disk fails.
    fn flush_volume(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem>;

    /// Trusts the volume's disk again after it failed a flush, and flushes it.
    ///
    /// # Errors
    /// There is no such volume, or its disk fails again.
    fn trust_volume(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem>;

    /// Measures below which size writes of the volume are worth gathering. Takes some seconds.
    ///
    /// # Errors
    /// There is no such volume, its clients leave no moment, or its disk can't be measured.
    fn calibrate_volume(&self, name: &str) -> Result<VolumeStatus, Problem>;

    /// Rehearses a power failure, writes the report down, and returns it.
    ///
    /// # Errors
    /// There is no vault, or it holds something, or fails.
    fn drill(&self) -> Result<DrillReport, Problem>;

    /// Writes all dirty data to the disks. When it returns without an error the daemon leaves;
    /// the server is given a moment to send its answer.
    ///
    /// # Errors
    /// A disk fails; the daemon stays.
    fn stop(&self, progress: ProgressFn<'_>) -> Result<(), Problem>;

    /// Serves no more, and leaves the pool to the program that is at the daemon's path now. When it
    /// returns without an error the daemon leaves, as after [`Manager::stop`].
    ///
    /// # Errors
    /// Nobody keeps the pool, or that program can't be started; the daemon stays.
    fn upgrade(&self) -> Result<(), Problem>;
}
