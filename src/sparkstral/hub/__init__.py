"""The Hub: what a repository holds, its headers, and downloads of which every byte is checked."""
