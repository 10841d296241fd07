"""Video files: writes MP4 and makes GIF previews of it."""
