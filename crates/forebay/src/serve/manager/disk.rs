//! What is done with the disk of a volume, by the control API.

use super::{Daemon, missing, problem};
use crate::serve::changes::reporter;
use forebay_api::{MissingVolume, Problem, VolumeSize, VolumeStatus};
use forebay_control::{DiskManager, ProgressFn};

/// The disks of a server's volumes.
pub(super) struct VolumeDisks<'a>(pub(super) &'a Daemon);

impl DiskManager for VolumeDisks<'_> {
    fn trust(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem> {
        self.0.runtime.volumes().trust(name, reporter(progress)).map_err(problem)?;
        tracing::info!(volume = %name, "disk trusted again");
        Ok(())
    }

    fn calibrate(&self, name: &str) -> Result<VolumeStatus, Problem> {
        self.0.runtime.volumes().calibrate(name).map_err(problem)?;
        self.0.volume_status(name)
    }

    fn take_over(&self, name: &str) -> Result<VolumeStatus, Problem> {
        missing::take_over(self.0, name)?;
        self.0.log_ratio();
        self.0.volume_status(name)
    }

    fn stand_by(&self, name: &str, progress: ProgressFn<'_>) -> Result<MissingVolume, Problem> {
        let missing = missing::stand_by(self.0, name, progress)?;
        self.0.log_ratio();
        Ok(missing)
    }

    fn resize(&self, name: &str) -> Result<VolumeSize, Problem> {
        let (former_bytes, size_bytes) = self.0.runtime.volumes().grow(name).map_err(problem)?;
        if size_bytes > former_bytes {
            self.0.vhost.grow(name, size_bytes);
        }
        Ok(VolumeSize { size_bytes, former_bytes })
    }
}
